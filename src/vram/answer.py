"""``vram.why()``: the answer of `vram why` for programs, as an object."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from vram.model.finding import Finding
from vram.model.ledger import GpuLedger, Ledger
from vram.report.process_rows import ProcessRow


class Answer(Struct, frozen=True, repr_omit_defaults=True):
    """Who holds GPU memory at one moment, and what is wrong. Its text is the screen of `vram why`.

    ``ledger`` accounts for every byte, ``processes`` are the rows of `vram ps`, trouble first, and
    ``findings`` what the rules found, the gravest first.
    """

    ledger: Ledger
    processes: tuple[ProcessRow, ...]
    findings: tuple[Finding, ...]

    @property
    def gpus(self) -> tuple[GpuLedger, ...]:
        """Every GPU; the entries of each sum to its total."""
        return self.ledger.gpus

    @property
    def ghosts(self) -> tuple[ProcessRow, ...]:
        """The rows of memory whose owner is dead."""
        return tuple(row for row in self.processes if row.state == "ghost")

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that somebody should do something about."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    @property
    def free_command(self) -> str | None:
        """The one command that frees the memory of dead owners; None where there is none to free."""
        from vram.diagnosis.leftover import way_back

        return way_back(self.ledger)

    def json(self) -> bytes:
        """Return what `vram why --json` prints."""
        from vram.report.json import why

        return why(self.ledger, self.findings)

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console

        from vram.report.layout import RenderOptions
        from vram.report.screen import screen

        out, width = StringIO(), 100
        console = Console(
            file=out, width=width, markup=False, highlight=False, emoji=False, color_system=None
        )
        console.print(screen(self.ledger, self.findings, RenderOptions(width)))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __repr__(self) -> str:
        return (
            f"<vram.why(): {len(self.gpus)} GPUs, {len(self.processes)} processes, {len(self.ghosts)} ghosts>"
        )


def why(*, gpus: Iterable[int] | None = None, snapshot: str | None = None, deadline_s: float = 5.0) -> Answer:
    """Read this host, or a *snapshot* file, and return the answer; *gpus* are the numbers of those wanted.

    The driver is read by a process of its own, within *deadline_s*: no context is made here, and a
    driver that hangs does not hang this program. What could not be read is said in ``ledger.probes``
    and in each GPU's ``status``. Raises UsageError for a GPU that is not there, BadSnapshot for a file that
    is no snapshot.
    """
    from vram.diagnosis.engine import diagnose
    from vram.ledger.build import build_ledger
    from vram.report.process_rows import rows

    if snapshot is not None:
        from vram.probes.bundle import read

        ledger = build_ledger(read(snapshot))
    else:
        from vram.account import take_survey
        from vram.host.local import LocalHost

        ledger = build_ledger(take_survey(LocalHost(), deadline_s))
    if gpus is not None:
        ledger = _only(ledger, tuple(gpus))
    return Answer(ledger, rows(ledger), diagnose(ledger))


def _only(ledger: Ledger, wanted: tuple[int, ...]) -> Ledger:
    from msgspec.structs import replace

    from vram.errors import UsageError

    there = {gpu.index for gpu in ledger.gpus}
    for index in wanted:
        if index not in there:
            hint = f"these exist: {', '.join(map(str, sorted(there)))}" if there else "there is none"
            raise UsageError(f"there is no GPU {index!r}", hint=hint)
    return replace(ledger, gpus=tuple(gpu for gpu in ledger.gpus if gpu.index in wanted))

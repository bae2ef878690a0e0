"""``vram.account()``, also ``vram.why()``: who holds GPU memory now, as an object. The one way to read it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import GpuLedger, Ledger

if TYPE_CHECKING:
    from vram.host.ports import Host
    from vram.model.plan import Draft, StepKind
    from vram.report.process_rows import ProcessRow

WIDTH = 100
"""Of the text, in columns."""
_HTML_COLUMNS = ("GPU memory", "GPU", "state", "pid", "user", "command")


class Account(Struct, frozen=True):
    """Who holds GPU memory at one moment, and what is wrong. Its text is the screen of `vram why`.

    ``ledger`` accounts for every byte of every GPU. ``holds`` say who holds which: each has ``holders``,
    ``state``, ``nbytes`` and ``gpus``. ``findings`` are what the rules found, the gravest first.
    """

    ledger: Ledger
    holds: tuple[Hold, ...]
    findings: tuple[Finding, ...]

    @property
    def gpus(self) -> tuple[GpuLedger, ...]:
        """Every GPU; the entries of each sum to its total."""
        return self.ledger.gpus

    @property
    def ghosts(self) -> tuple[Hold, ...]:
        """The holds whose owner is dead."""
        return tuple(hold for hold in self.holds if hold.what == "ghost")

    @property
    def processes(self) -> tuple[ProcessRow, ...]:
        """The rows of `vram ps`, trouble first."""
        from vram.report.process_rows import rows

        return rows(self.ledger)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that call for action."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    @property
    def free_command(self) -> str | None:
        """The one command that frees the memory of dead owners; None where there is none to free."""
        from vram.diagnosis.leftover import way_back

        return way_back(self.ledger)

    def plan_free(self, hold: Hold, *, only: StepKind | None = None) -> Draft:
        """Plan what frees *hold*, as `vram free --pid` does for its holders: the gentlest way, or *only* one.

        Nothing is touched; ``vram.reclaim.execute(draft.plan)`` carries the plan out. The machine is read
        anew. Raises where no holder is visible, and where a holder must be left alone.
        """
        from vram.errors import NoSuchProcess
        from vram.reclaim import plan

        if not hold.holders:
            raise NoSuchProcess("no process that holds it is visible", hint="as root more can be seen")
        return plan(pids=tuple(holder.pid for holder in hold.holders), only=only)

    def json(self) -> bytes:
        """Return what `vram why --json` prints."""
        from vram.report.json import why

        return why(self.ledger, self.findings)

    def __str__(self) -> str:
        from io import StringIO

        from rich.console import Console

        from vram.report.layout import RenderOptions
        from vram.report.screen import screen

        out = StringIO()
        console = Console(
            file=out, width=WIDTH, markup=False, highlight=False, emoji=False, color_system=None
        )
        console.print(screen(self.ledger, self.findings, RenderOptions(WIDTH)))
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())

    def __repr__(self) -> str:
        from vram.units import counted

        counts = ((len(self.gpus), "GPU"), (len(self.holds), "hold"), (len(self.ghosts), "ghost"))
        return f"<vram.account(): {', '.join(counted(*each) for each in counts)}>"

    def _repr_html_(self) -> str:
        """The rows of `vram ps` as a table, for notebooks."""
        from html import escape

        from vram.model.hold import STATES
        from vram.report.escape import inert
        from vram.units import size

        def line(cells: Iterable[str], tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{escape(inert(cell))}</{tag}>' for cell in cells)}</tr>"

        lines = [
            line(
                (
                    "unknown" if row.nbytes is None else size(row.nbytes),
                    ", ".join(row.places),
                    STATES[row.state].label,
                    "" if row.pid is None else str(row.pid),
                    row.user or "",
                    row.command or row.note,
                ),
                "td",
            )
            for row in self.processes
        ]
        return f"<table>{line(_HTML_COLUMNS, 'th')}{''.join(lines)}</table>"


def account(
    *, gpus: Iterable[int] | None = None, snapshot: str | None = None, deadline_s: float = 5.0
) -> Account:
    """Read this host, or a *snapshot* file; *gpus* are the numbers of those wanted.

    The driver is read by a process of its own, within *deadline_s*: no context is made here, and a
    driver that hangs does not hang this program. What could not be read is said in ``ledger.probes``
    and in each GPU's ``status``. Raises UsageError for a GPU that is not there, BadSnapshot for a file that
    is no snapshot.
    """
    from vram.diagnosis.engine import diagnose
    from vram.ledger.holds import find_holds

    if snapshot is not None:
        from vram.ledger.build import build_ledger
        from vram.probes.bundle import read

        ledger = build_ledger(read(snapshot))
    else:
        from vram.host.local import LocalHost

        ledger = take_ledger(LocalHost(), deadline_s)
    if gpus is not None:
        ledger = _only(ledger, tuple(gpus))
    return Account(ledger, find_holds(ledger), diagnose(ledger))


def why(
    *, gpus: Iterable[int] | None = None, snapshot: str | None = None, deadline_s: float = 5.0
) -> Account:
    """As ``vram.account()``: ``print(vram.why())`` prints what `vram why` does."""
    return account(gpus=gpus, snapshot=snapshot, deadline_s=deadline_s)


def take_ledger(host: Host, deadline_s: float) -> Ledger:
    """The ledger of *host*, with whom this user parked there."""
    from vram.reading import read_ledger
    from vram.reclaim.state import parked

    return read_ledger(host, deadline_s, parked)


def _only(ledger: Ledger, wanted: tuple[int, ...]) -> Ledger:
    from msgspec.structs import replace

    from vram.errors import UsageError

    there = {gpu.index for gpu in ledger.gpus}
    for index in wanted:
        if index not in there:
            hint = f"these exist: {', '.join(map(str, sorted(there)))}" if there else "there is none"
            raise UsageError(f"there is no GPU {index!r}", hint=hint)
    return replace(ledger, gpus=tuple(gpu for gpu in ledger.gpus if gpu.index in wanted))

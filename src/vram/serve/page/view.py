"""What the page shows of one reading: bars, rows and findings, in the words of ``vram why`` and ``vram ps``.

Pure: a ledger and its findings go in, values that become JSON come out. The page itself draws them and
knows no kind, no state and no sentence of its own about memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.leftover import GHOST_CODES
from vram.model.finding import Finding, Harm
from vram.model.hold import STATES
from vram.model.kinds import KINDS, MEANINGS, Leftover
from vram.model.ledger import Entry, Ledger, known_bytes
from vram.report.advice import HARMS
from vram.report.gpu_bars import GpuBar, gpu_bars
from vram.report.layout import KIND_STYLES
from vram.report.process_rows import ProcessRow, rows
from vram.report.screen import LEADS, the_remedy, unseen

MAX_FINDINGS = 200
"""So many findings a page gets; ``left_out`` says how many there are besides."""


class KindWords(Struct, frozen=True, kw_only=True):
    """A kind of memory: its name, what it means, and how `vram why` paints it."""

    kind: str
    meaning: str
    color: str
    glyph: str
    used: bool | None
    leftover: Leftover


class StateWords(Struct, frozen=True, kw_only=True):
    """A state of a process: how it is written, and what it means."""

    state: str
    label: str
    trouble: bool
    meaning: str


class Words(Struct, frozen=True, kw_only=True):
    """What never changes while a version runs: kinds in the order of the bars, states, harms."""

    version: str
    kinds: tuple[KindWords, ...]
    states: tuple[StateWords, ...]
    harms: Mapping[Harm, str]


def words(version: str) -> Words:
    """The words of the program, for the page."""
    return Words(
        version=version,
        kinds=tuple(
            KindWords(
                kind=kind,
                meaning=MEANINGS[kind][0],
                color=style.style,
                glyph=style.glyph,
                used=KINDS[kind].used,
                leftover=KINDS[kind].leftover,
            )
            for kind, style in KIND_STYLES.items()
        ),
        states=tuple(
            StateWords(state=state, label=facts.label, trouble=facts.trouble, meaning=facts.meaning)
            for state, facts in STATES.items()
        ),
        harms=HARMS,
    )


class PageGpu(Struct, frozen=True, kw_only=True):
    """A bar: one GPU, or one MIG instance of it. ``complaint`` stands there where it cannot be read."""

    gpu: int
    label: str
    total_bytes: int | None
    kinds: Mapping[str, int]
    figures: str
    complaint: str = ""


class PageFinding(Struct, frozen=True, kw_only=True):
    """A finding, and the one command that answers it. ``ghost``: its memory belongs to nobody alive."""

    code: str
    title: str
    severity: str
    nbytes: int | None
    gpus: tuple[int, ...]
    pids: tuple[int, ...]
    cause: str
    evidence: tuple[str, ...]
    ghost: bool
    since: str | None = None
    lead: str = ""
    command: str = ""
    advice: str = ""
    harm: Harm | None = None


class PageWorker(Struct, frozen=True, kw_only=True):
    """A process that is counted in the row of another one."""

    pid: int
    user: str | None
    age_s: float | None
    command: str | None


class PageReading(Struct, frozen=True, kw_only=True):
    """One reading of a host. ``user`` is whom the commands of the findings are for.

    ``no_driver`` says why there is no GPU, where no driver answers.
    """

    schema: Literal[1] = 1
    taken_at: str
    node: str
    user: str
    driver: str | None
    gpus: tuple[PageGpu, ...]
    processes: tuple[ProcessRow, ...]
    workers: tuple[PageWorker, ...]
    findings: tuple[PageFinding, ...]
    left_out: int
    gaps: tuple[str, ...]
    no_driver: str | None = None


def page_reading(
    ledger: Ledger, findings: Sequence[Finding], since: Mapping[Finding, str | None] | None = None
) -> PageReading:
    """What the page shows of *ledger*; *since* is when each of its findings was first seen."""
    shown = [finding for finding in findings if finding.severity != "info"]
    ghosts_first = sorted(shown, key=lambda finding: finding.code not in GHOST_CODES)
    found = rows(ledger)
    return PageReading(
        taken_at=ledger.taken_at,
        node=ledger.host.name,
        user=ledger.host.user,
        driver=ledger.driver.driver_version if ledger.driver else None,
        gpus=tuple(_gpu(bar) for bar in gpu_bars(ledger)),
        processes=found,
        workers=tuple(_workers(ledger, found)),
        findings=tuple(_finding(each, (since or {}).get(each)) for each in ghosts_first[:MAX_FINDINGS]),
        left_out=max(0, len(shown) - MAX_FINDINGS),
        gaps=tuple(unseen(ledger)),
        no_driver=_no_driver(ledger),
    )


def without_times(reading: PageReading) -> PageReading:
    """*reading* without what differs in every reading of a machine on which nothing happens."""
    return replace(
        reading,
        taken_at="",
        processes=tuple(replace(row, age_s=None) for row in reading.processes),
        workers=tuple(replace(worker, age_s=None) for worker in reading.workers),
        findings=tuple(replace(finding, since=None) for finding in reading.findings),
    )


def _no_driver(ledger: Ledger) -> str | None:
    if ledger.gpus:
        return None
    silent = [each for each in ledger.probes if each.name == "nvml" and each.status != "ok"]
    return next((each.message or "no NVIDIA driver answers" for each in silent), None)


def _gpu(bar: GpuBar) -> PageGpu:
    return PageGpu(
        gpu=bar.gpu,
        label=bar.label,
        total_bytes=known_bytes(bar.entries) if bar.figures else None,
        kinds=_kinds(bar.entries),
        figures=bar.figures,
        complaint=bar.complaint,
    )


def _kinds(entries: Sequence[Entry]) -> dict[str, int]:
    """The bytes of each kind that there is, in the order of the bar."""
    sums: dict[str, int] = {}
    for entry in entries:
        sums[entry.kind] = sums.get(entry.kind, 0) + (entry.nbytes or 0)
    return {kind: sums[kind] for kind in KIND_STYLES if sums.get(kind)}


def _finding(finding: Finding, since: str | None) -> PageFinding:
    remedy = the_remedy(finding)
    return PageFinding(
        code=finding.code,
        title=finding.title,
        severity=finding.severity,
        nbytes=finding.nbytes,
        gpus=finding.gpus,
        pids=finding.pids,
        cause=finding.cause,
        evidence=finding.evidence,
        ghost=finding.code in GHOST_CODES,
        since=since,
        lead=LEADS.get(remedy.step, "Do") if remedy else "",
        command=remedy.command if remedy else "",
        advice=remedy.text if remedy else "",
        harm=remedy.harm if remedy else None,
    )


def _workers(ledger: Ledger, found: Sequence[ProcessRow]) -> Iterator[PageWorker]:
    """Everybody who is counted in a row and has none."""
    folded = {pid for row in found for pid in (*row.workers, *row.co_holders)}
    folded -= {row.pid for row in found if row.pid is not None}
    for row in rows(ledger, every_process=True) if folded else ():
        if row.pid in folded:
            yield PageWorker(pid=row.pid, user=row.user, age_s=row.age_s, command=row.command)

"""``--json`` of ``vram report``, ``vram report diff`` and ``vram report fit``: for scripts. Unknown is null.

What ``model/trace.py`` has is printed as it is there, but for rows about stacks. Those have structs here,
with the same names for the same figures: gathered by ``--by``, with a place, the stacks numbered anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from vram.model.trace import (
    CallStack,
    Fit,
    Frame,
    Gap,
    GpuUse,
    HeldArrays,
    HeldBefore,
    Holes,
    Mark,
    MemoryKind,
    TimelinePoint,
    TracedProcess,
    TraceView,
    Trend,
    Verdict,
    stack_of,
)
from vram.report.json import encode
from vram.trace.places import place
from vram.trace_report import windows
from vram.trace_report.rows import (
    PICKS,
    AllocationRow,
    By,
    DiffRow,
    churn_rows,
    differences,
    leaks_of,
    rows,
    site_key,
)
from vram.trace_report.words import VERDICTS

View = Literal["summary", "peak", "window", "leaks", "timeline", "churn", "frag"]


class TraceRow(Struct, frozen=True, kw_only=True):
    """Allocations that belong together, by ``by``.

    ``place`` is the line of the program that they are shown with; ``stack`` counts in ``stacks`` and is the
    one that has most of the bytes, of ``stack_count``. ``processes`` are the ``index`` of those.
    """

    label: str
    place: Frame | None
    stack: int
    stack_count: int
    nbytes: int
    count: int
    kinds: tuple[str, ...]
    gpus: tuple[int | None, ...]
    processes: tuple[int, ...]


class LeakRow(Struct, frozen=True, kw_only=True):
    """Allocations that were never freed. Times are nanoseconds since the recording began."""

    verdict: Verdict
    row: TraceRow
    first_ns: int
    last_ns: int
    freed: int
    largest: int


class ChurnRow(Struct, frozen=True, kw_only=True):
    """Allocations that were freed again soon. ``median_life_ns`` is that of the stack with most of them."""

    row: TraceRow
    median_life_ns: int
    per_second: float


class FrameworkRow(Struct, frozen=True, kw_only=True):
    """How a framework used what it took from the driver."""

    process: int
    framework: str
    gpu: int | None
    at: Literal["peak", "end"]
    reserved_nbytes: int
    used_nbytes: int
    rows: tuple[TraceRow, ...]
    note: str | None


class WindowPlaceRow(Struct, frozen=True, kw_only=True):
    """What a place did in a window. ``row`` has the count and bytes that were live at its highest moment.

    ``name`` is what the program calls memory from before recording, which has no stack. ``base_`` is what was
    live when the window began, ``end_`` when it ended; ``made`` and ``freed`` happened in it.
    """

    row: TraceRow
    name: str
    base_count: int
    base_nbytes: int
    end_count: int
    end_nbytes: int
    made: int
    made_nbytes: int
    freed: int
    median_life_ns: int | None
    growing: bool
    per_second: float
    nbytes_per_second: float


class WindowReport(Struct, frozen=True, kw_only=True):
    """A GPU's memory from a moment to the end of the recording, as in ``model/trace.py``; ``framework`` null:
    what was asked of the driver. ``before_nbytes`` was held before recording, beside the other figures."""

    process: int | None
    gpu: int | None
    framework: str | None
    begin_ns: int
    end_ns: int
    before_nbytes: int | None
    base_nbytes: int
    highest_nbytes: int
    highest_ns: int
    end_nbytes: int
    lowest: tuple[int, int, int, int]
    trend: Trend
    rows: tuple[WindowPlaceRow, ...]


class FailedRow(Struct, frozen=True, kw_only=True):
    """An allocation that the driver refused; ``result`` is its CUresult."""

    process: int
    time_ns: int
    kind: MemoryKind
    gpu: int | None
    nbytes: int
    result: int
    place: Frame | None
    stack: int


class TraceReport(Struct, frozen=True, kw_only=True):
    """What ``vram report --json`` prints: the summary has all parts, a view its own; the others are null.

    ``schema`` changes when a field changes its meaning or goes away; new fields may come without that.
    """

    schema: Literal[2] = 2
    view: View
    by: By
    paths: tuple[str, ...]
    processes: tuple[TracedProcess, ...]
    duration_ns: int
    events: int
    gpus: tuple[GpuUse, ...]
    host_peak_nbytes: int
    gaps: tuple[Gap, ...]
    marks: tuple[Mark, ...]
    before: tuple[HeldBefore, ...]
    failures: tuple[FailedRow, ...]
    failures_in_all: int
    damage: tuple[str, ...]
    peak: tuple[TraceRow, ...] | None
    leaks: tuple[LeakRow, ...] | None
    churn: tuple[ChurnRow, ...] | None
    timeline: tuple[TimelinePoint, ...] | None
    holes: tuple[Holes, ...] | None
    frameworks: tuple[FrameworkRow, ...] | None
    windows: tuple[WindowReport, ...] | None
    held: tuple[HeldArrays, ...] | None
    stacks: tuple[CallStack, ...]


class _Stacks:
    """The stacks that rows refer to, numbered anew: a trace may have a hundred thousand others."""

    def __init__(self, view: TraceView) -> None:
        self._view = view
        self._numbers: dict[int, int] = {}

    def number(self, stack: int) -> int:
        return self._numbers.setdefault(stack, len(self._numbers))

    def kept(self) -> tuple[CallStack, ...]:
        return tuple(stack_of(self._view, number) for number in self._numbers)

    def row(self, row: AllocationRow) -> TraceRow:
        return TraceRow(
            label=row.label,
            place=row.place,
            stack=self.number(row.stack),
            stack_count=row.stacks,
            nbytes=row.nbytes,
            count=row.count,
            kinds=row.kinds,
            gpus=row.gpus,
            processes=row.processes,
        )


def report(view: TraceView, name: View, by: By, limit: int | None) -> bytes:
    """Encode a view; *limit* rows of each part, all without it."""
    stacks = _Stacks(view)
    parts: dict[str, Callable[[], Iterable[Any]]] = {
        "peak": lambda: _peak(view, stacks, by, limit),
        "leaks": lambda: _leaks(view, stacks, by, limit),
        "churn": lambda: _churn(view, stacks, by, limit),
        "timeline": lambda: view.timeline,
        "holes": lambda: _holes(view, stacks),
        "frameworks": lambda: _frameworks(view, stacks, by, limit),
        "windows": lambda: _windows(view, stacks, by, limit),
        "held": lambda: view.held[:limit],
    }
    shown = parts if name == "summary" else _PARTS[name]
    whole = {
        **{field: getattr(view, field) for field in _AS_IN_VIEW},
        "failures": tuple(_failures(view, stacks)),
        **{part: tuple(made()) if part in shown else None for part, made in parts.items()},
    }
    return encode(TraceReport(view=name, by=by, **whole, stacks=stacks.kept()))


_PARTS: dict[View, tuple[str, ...]] = {
    "peak": ("peak", "frameworks"),
    "window": ("windows", "held"),
    "leaks": ("leaks",),
    "timeline": ("timeline",),
    "churn": ("churn",),
    "frag": ("holes",),
}
_AS_IN_VIEW = (
    *("paths", "processes", "duration_ns", "events", "gpus", "host_peak_nbytes", "gaps", "marks", "before"),
    *("failures_in_all", "damage"),
)


def _failures(view: TraceView, stacks: _Stacks) -> Iterable[FailedRow]:
    for each in view.failures:
        at = place(stack_of(view, each.stack))
        yield FailedRow(**{**asdict(each), "place": at, "stack": stacks.number(each.stack)})


def _peak(view: TraceView, stacks: _Stacks, by: By, limit: int | None) -> Iterable[TraceRow]:
    for use in view.gpus:
        sites = (site for site in view.peak if site.gpu == use.gpu)
        yield from map(stacks.row, rows(view, sites, by)[:limit])


def _leaks(view: TraceView, stacks: _Stacks, by: By, limit: int | None) -> Iterable[LeakRow]:
    for verdict in VERDICTS:
        found = leaks_of(view, verdict)
        known = {site_key(leak.site): leak for leak in found}
        for row in rows(view, (leak.site for leak in found), by)[:limit]:
            theirs = [known[site_key(site)] for site in row.sites]
            yield LeakRow(
                verdict=verdict,
                row=stacks.row(row),
                first_ns=min(leak.first_ns for leak in theirs),
                last_ns=max(leak.last_ns for leak in theirs),
                freed=sum(leak.freed for leak in theirs),
                largest=max(leak.largest for leak in theirs),
            )


def _churn(view: TraceView, stacks: _Stacks, by: By, limit: int | None) -> Iterable[ChurnRow]:
    for row, median_life_ns, per_second in churn_rows(view, by, limit):
        yield ChurnRow(row=stacks.row(row), median_life_ns=median_life_ns, per_second=per_second)


def _holes(view: TraceView, stacks: _Stacks) -> Iterable[Holes]:
    for each in view.holes:
        blocks = tuple((address, nbytes, stacks.number(stack)) for address, nbytes, stack in each.blocks)
        yield replace(each, blocks=blocks)


def _windows(view: TraceView, stacks: _Stacks, by: By, limit: int | None) -> Iterable[WindowReport]:
    for window in view.windows:
        known = asdict(window)
        del known["places"]
        found = sorted(
            windows.window_rows(view, [window], by, lambda each: True),
            key=lambda each: (-each.row.nbytes, -each.end_nbytes, -each.made_nbytes),
        )
        rows = tuple(
            WindowPlaceRow(**{**asdict(each), "row": stacks.row(each.row)}) for each in found[:limit]
        )
        yield WindowReport(**known, rows=rows)


def _frameworks(view: TraceView, stacks: _Stacks, by: By, limit: int | None) -> Iterable[FrameworkRow]:
    for use in view.frameworks:
        known = asdict(use)
        sites = known.pop("sites")
        yield FrameworkRow(**known, rows=tuple(map(stacks.row, rows(view, sites, by)[:limit])))


# ---- two traces ----


class DiffSide(Struct, frozen=True, kw_only=True):
    """One of the two traces."""

    paths: tuple[str, ...]
    duration_ns: int
    gpus: tuple[GpuUse, ...]


class TraceDiffReport(Struct, frozen=True, kw_only=True):
    """What ``vram report diff A B --json`` prints: only what changed, the largest growth first."""

    schema: Literal[2] = 2
    by: By
    before: DiffSide
    after: DiffSide
    at_peak: tuple[DiffRow, ...]
    never_freed: tuple[DiffRow, ...]
    blocks_at_peak: tuple[DiffRow, ...]
    """Of frameworks, inside what is ``at_peak``."""


def diff(before: TraceView, after: TraceView, by: By, limit: int | None) -> bytes:
    at_peak, never_freed, blocks = (
        tuple(differences(before, after, pick, by, limit).rows) for pick in PICKS.values()
    )
    return encode(
        TraceDiffReport(
            by=by,
            before=_side(before),
            after=_side(after),
            at_peak=at_peak,
            never_freed=never_freed,
            blocks_at_peak=blocks,
        )
    )


def _side(view: TraceView) -> DiffSide:
    return DiffSide(paths=view.paths, duration_ns=view.duration_ns, gpus=view.gpus)


# ---- cards ----


class FitReport(Struct, frozen=True, kw_only=True):
    """What ``vram report fit --json`` prints. ``needs`` are per GPU; a card must fit the fullest."""

    schema: Literal[1] = 1
    paths: tuple[str, ...]
    fit: Fit


def fit(view: TraceView, found: Fit) -> bytes:
    return encode(FitReport(paths=view.paths, fit=found))

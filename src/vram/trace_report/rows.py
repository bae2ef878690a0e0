"""Rows of a trace: allocations gathered by line, file, library or stack; a part of a trace; two compared.

Values in, values out: the text in them is foreign and still has to be made inert.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple, get_args, overload

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import UsageError
from vram.model.trace import (
    BLOCKS,
    ON_GPU,
    ON_HOST,
    ChurnSite,
    Frame,
    LeakSite,
    MemoryKind,
    Site,
    TraceView,
    Verdict,
    stack_of,
)
from vram.trace.places import (
    NO_STACK,
    caller,
    is_installed,
    is_wrapper,
    library,
    place,
    position,
    shown_file,
)
from vram.units import size

By = Literal["line", "function", "file", "library", "stack"]
GROUPINGS: tuple[By, ...] = get_args(By)

Memory = Literal["gpu", "host", "block"]
SiteKey = tuple[int, MemoryKind, int | None, int]
"""Stack, kind, GPU and process."""

# Of a row with many stacks, the largest are enough to say where they come from.
_STACKS_COMPARED, _DEEPEST_COMPARED, _NEARLY_ALL = 64, 256, 0.95


# ---- allocations gathered ----


class AllocationRow(Struct, kw_only=True):
    """Allocations that belong together: by line, function, file, library or stack."""

    label: str
    place: Frame | None
    stack: int
    """The stack that has most of the bytes."""
    stacks: int
    nbytes: int
    count: int
    kinds: tuple[str, ...]
    gpus: tuple[int | None, ...]
    processes: tuple[int, ...]
    caller: Frame | None
    """Who called the place from another file; None where there is none, or several."""
    wraps: bool
    """Whether others call the same place: then the caller says more."""
    sites: list[Site]


def rows(view: TraceView, sites: Iterable[Site], by: By) -> Rows:
    """Gather *sites*; the largest row first."""
    key = grouping(view, by)
    gathered: dict[Hashable, list[Site]] = {}
    for site in sites:
        # Never added up: a framework's blocks lie inside memory of the driver, host memory is not the GPU's.
        gathered.setdefault((memory_of(site), key(site.stack)), []).append(site)
    return Rows(
        view, by, sorted(gathered.values(), key=lambda each: (-_nbytes(each), -_count(each), each[0].stack))
    )


class Rows(Sequence[AllocationRow]):
    """Rows that are made when they are asked for: a trace may have a hundred thousand, a screen shows ten."""

    def __init__(self, view: TraceView, by: By, gathered: list[list[Site]]) -> None:
        self._view, self._by, self._gathered = view, by, gathered

    def __len__(self) -> int:
        return len(self._gathered)

    @overload
    def __getitem__(self, at: int) -> AllocationRow: ...
    @overload
    def __getitem__(self, at: slice) -> list[AllocationRow]: ...
    def __getitem__(self, at: int | slice) -> AllocationRow | list[AllocationRow]:
        if isinstance(at, slice):
            return [row_of(self._view, sites, self._by) for sites in self._gathered[at]]
        return row_of(self._view, self._gathered[at], self._by)

    def nbytes_from(self, at: int) -> int:
        """The bytes of the rows from this one on."""
        return sum(map(_nbytes, self._gathered[at:]))


def row_of(view: TraceView, sites: list[Site], by: By) -> AllocationRow:
    largest = max(sites, key=lambda site: site.nbytes)
    return AllocationRow(
        label=label(view, largest.stack, by),
        place=place(stack_of(view, largest.stack)) if by in ("line", "function", "stack") else None,
        stack=largest.stack,
        stacks=len({site.stack for site in sites}),
        nbytes=_nbytes(sites),
        count=_count(sites),
        kinds=tuple(dict.fromkeys(site.kind for site in sites)),
        gpus=tuple(dict.fromkeys(site.gpu for site in sites)),
        processes=tuple(dict.fromkeys(site.process for site in sites)),
        caller=_only_caller(view, sites) if by in ("line", "function", "stack") else None,
        wraps=is_wrapper(view, place(stack_of(view, largest.stack))),
        sites=sites,
    )


def _only_caller(view: TraceView, sites: list[Site]) -> Frame | None:
    callers = {caller(stack_of(view, number)) for number in {site.stack for site in sites[:_STACKS_COMPARED]}}
    return callers.pop() if len(callers) == 1 else None


class CallerShare(Struct, frozen=True):
    """A caller of a place, and what was allocated through it."""

    frame: Frame | None
    nbytes: int


def branches(view: TraceView, row: AllocationRow) -> list[CallerShare]:
    """Who the allocations of *row* come from, where its stacks part; the largest first, none for one stack.

    From the innermost frame outwards, as long as nearly all bytes come from the same caller.
    """
    sites = sorted(row.sites, key=lambda site: -site.nbytes)[:_STACKS_COMPARED]
    for depth in range(_DEEPEST_COMPARED):
        by_frame: dict[Frame | None, list[Site]] = {}
        for site in sites:
            frames = stack_of(view, site.stack).frames
            by_frame.setdefault(frames[depth] if depth < len(frames) else None, []).append(site)
        largest = max(by_frame.values(), key=_nbytes)
        if len(by_frame) > 1 and _nbytes(largest) < _NEARLY_ALL * _nbytes(sites):
            found = [CallerShare(frame, _nbytes(each)) for frame, each in by_frame.items()]
            return sorted(found, key=lambda branch: -branch.nbytes)
        if None in by_frame and by_frame[None] is largest:
            return []
        sites = largest
    return []


def _nbytes(sites: Iterable[Site]) -> int:
    return sum([site.nbytes for site in sites])


def _count(sites: Iterable[Site]) -> int:
    return sum([site.count for site in sites])


def grouping(view: TraceView, by: By, *, compared: bool = False) -> Callable[[int], Hashable]:
    """What the stacks of a row have in common; in traces that are *compared* no lines: code moves."""
    if by == "stack" and not compared:
        return lambda number: number

    @cache
    def key(number: int) -> Hashable:
        stack = stack_of(view, number)
        if by == "library":
            return library(stack)
        if by == "stack":
            return tuple((frame.function, _same_file(frame.file)) for frame in stack.frames)
        frame = place(stack)
        if frame is None or (by == "line" and not compared):
            return frame
        file = _same_file(frame.file) if compared else frame.file
        return file if by == "file" else (frame.function, file)

    return key


@lru_cache(maxsize=65536)
def _same_file(file: str) -> str:
    """Name a file so that two checkouts of a program agree: by its name, or from the package on."""
    return shown_file(file) if is_installed(file) else file.rpartition("/")[2]


def label(view: TraceView, number: int, by: By) -> str:
    """What a row is called, in one line."""
    stack = stack_of(view, number)
    if by == "library":
        return library(stack)
    frame = place(stack)
    if frame is None:
        return NO_STACK
    return shown_file(frame.file) if by == "file" else f"{frame.function} {position(frame)}"


def memory_of(site: Site) -> Memory:
    """Whose memory it is: the GPU's, the host's, or part of a framework's own."""
    if site.kind in BLOCKS:
        return "block"
    return "host" if site.kind in ON_HOST else "gpu"


def amounts(sites: Sequence[Site]) -> str:
    """How much *sites* are, in words; what must not be added up stands apart."""
    said = []
    for memory, words in (("gpu", ""), ("host", " of host memory"), ("block", " of frameworks' blocks")):
        theirs = [site for site in sites if memory_of(site) == memory]
        if theirs:
            said.append(f"{size(_nbytes(theirs))}{words} in {allocations(_count(theirs))}")
    return ", ".join(said)


def allocations(count: int) -> str:
    return f"{count:,} allocation{'' if count == 1 else 's'}"


def site_key(site: Site) -> SiteKey:
    return site.stack, site.kind, site.gpu, site.process


def on_gpu(sites: Iterable[Site]) -> list[Site]:
    """Those that occupy memory of a GPU; blocks of frameworks lie inside them."""
    return [site for site in sites if site.kind in ON_GPU]


def leaks_of(view: TraceView, verdict: Verdict) -> list[LeakSite]:
    return [leak for leak in view.leaks if leak.verdict == verdict]


def churn_rows(view: TraceView, by: By, limit: int | None) -> list[tuple[AllocationRow, int, float]]:
    """Rows with the median life of their largest stack and allocations a second; the most pairs first."""
    by_stack: dict[int, list[ChurnSite]] = {}
    for each in view.churn:
        by_stack.setdefault(each.site.stack, []).append(each)
    key = grouping(view, by)
    gathered: dict[Hashable, list[Site]] = {}
    for each in view.churn:
        gathered.setdefault(key(each.site.stack), []).append(each.site)
    found = []
    for sites in sorted(gathered.values(), key=lambda each: (-_count(each), each[0].stack))[:limit]:
        row = row_of(view, sites, by)
        theirs = [each for number in {site.stack for site in sites} for each in by_stack[number]]
        life = max(by_stack[row.stack], key=lambda each: each.site.count).median_life_ns
        found.append((row, life, sum(each.per_second for each in theirs)))
    return found


# ---- part of a trace ----


def narrowed(view: TraceView, gpus: Collection[int] = (), pids: Collection[int] = ()) -> TraceView:
    """*view* with only these GPUs and processes. Raises UsageError where it has none of them.

    Figures per GPU (peak, end, timeline) stay those of all traced processes together.
    """
    if gpus:
        view = _with_gpus(view, gpus)
    return _with_processes(view, pids) if pids else view


def _with_gpus(view: TraceView, gpus: Collection[int]) -> TraceView:
    known = {use.gpu for use in view.gpus}
    for gpu in gpus:
        if gpu not in known:
            there = ", ".join(str(each) for each in sorted(n for n in known if n is not None))
            raise UsageError(
                f"the trace has nothing on GPU {gpu}",
                hint=f"it has GPU {there}" if there else "it has no allocation on a GPU",
            )
    return _keep(
        view,
        (
            "gpus",
            "allocations",
            "peak",
            "leaks",
            "timeline",
            "churn",
            "holes",
            "failures",
            "before",
            "frameworks",
            "windows",
            "held",
        ),
        lambda each: each.gpu in gpus,
    )


def _with_processes(view: TraceView, pids: Collection[int]) -> TraceView:
    known = {process.pid for process in view.processes}
    for pid in pids:
        if pid not in known:
            there = ", ".join(map(str, sorted(known)))
            raise UsageError(f"the trace has no process {pid}", hint=f"it has {there}")
    wanted = {process.index for process in view.processes if process.pid in pids}
    kept = replace(view, processes=tuple(each for each in view.processes if each.index in wanted))
    return _keep(
        kept,
        (
            "allocations",
            "peak",
            "leaks",
            "churn",
            "holes",
            "failures",
            "gaps",
            "marks",
            "before",
            "frameworks",
            "windows",
            "held",
        ),
        lambda each: each.process in wanted or each.process is None,
    )


def _keep(view: TraceView, lists: Sequence[str], is_wanted: Callable[[Any], bool]) -> TraceView:
    """*view* with the members of these *lists* that are wanted; those of leaks and churn have a site."""
    return replace(
        view,
        **{
            name: tuple(each for each in getattr(view, name) if is_wanted(getattr(each, "site", each)))
            for name in lists
        },
    )


# ---- two traces compared ----

PICKS: dict[str, Callable[[TraceView], Sequence[Site]]] = {
    "at the peak": lambda view: on_gpu(view.peak),
    "never freed": lambda view: [leak.site for leak in view.leaks if memory_of(leak.site) == "gpu"],
    "in frameworks' blocks at the peak": lambda view: [
        site for block in view.frameworks if block.at == "peak" for site in block.sites
    ],
}


class DiffRow(Struct, frozen=True, kw_only=True):
    """What one place had in the first trace and in the second."""

    label: str
    place: Frame | None
    caller: Frame | None
    """Who called the place from another file of the program."""
    before_nbytes: int
    after_nbytes: int
    before_count: int
    after_count: int

    @property
    def change(self) -> int:
        return self.after_nbytes - self.before_nbytes


class Differences(Struct, frozen=True, kw_only=True):
    """What changed, the largest growth first; of many the largest changes, and what the others sum to."""

    rows: list[DiffRow]
    total: int
    hidden: int
    hidden_nbytes: int


def differences(
    before: TraceView,
    after: TraceView,
    pick: Callable[[TraceView], Sequence[Site]],
    by: By,
    limit: int | None = None,
) -> Differences:
    """Compare what *pick* finds in both."""
    old, new = _sums(before, pick(before), by), _sums(after, pick(after), by)
    changed = []
    for key in old.keys() | new.keys():
        first, second = old.get(key, _Sum()), new.get(key, _Sum())
        if first.nbytes != second.nbytes:
            view, stack = (after, second.stack) if key in new else (before, first.stack)
            changed.append(_Change(second.nbytes - first.nbytes, view, stack, first, second))
    changed.sort(key=lambda each: (-abs(each.nbytes), each.nbytes, each.stack))
    limit = len(changed) if limit is None else limit
    shown = sorted(changed[:limit], key=lambda each: (-each.nbytes, each.stack))
    return Differences(
        rows=[_diff_row(each, by) for each in shown],
        total=sum(each.nbytes for each in changed),
        hidden=max(0, len(changed) - limit),
        hidden_nbytes=sum(each.nbytes for each in changed[limit:]),
    )


class _Sum(Struct):
    stack: int = -1
    largest: int = -1
    nbytes: int = 0
    count: int = 0


class _Change(NamedTuple):
    """*stack* is one of *view*, which is the second trace unless only the first has the row."""

    nbytes: int
    view: TraceView
    stack: int
    first: _Sum
    second: _Sum


def _sums(view: TraceView, sites: Sequence[Site], by: By) -> dict[Hashable, _Sum]:
    key = grouping(view, by, compared=True)
    sums: dict[Hashable, _Sum] = {}
    for site in sites:
        total = sums.setdefault(key(site.stack), _Sum())
        total.nbytes += site.nbytes
        total.count += site.count
        if site.nbytes > total.largest:
            total.stack, total.largest = site.stack, site.nbytes
    return sums


def _diff_row(change: _Change, by: By) -> DiffRow:
    stack = stack_of(change.view, change.stack)
    return DiffRow(
        label=label(change.view, change.stack, by),
        place=place(stack) if by in ("line", "function", "stack") else None,
        caller=caller(stack) if by == "stack" else None,
        before_nbytes=change.first.nbytes,
        after_nbytes=change.second.nbytes,
        before_count=change.first.count,
        after_count=change.second.count,
    )

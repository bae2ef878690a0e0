"""Rows of a trace: which place a stack stands for, allocations gathered by it, two traces compared.

Values in, values out: the text in them is foreign and still has to be made inert.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from functools import cache, lru_cache
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.errors import UsageError
from vram.model.trace import ON_GPU, CallStack, ChurnSite, Frame, LeakSite, Site, TraceView

By = Literal["line", "function", "file", "library", "stack"]
GROUPINGS: tuple[By, ...] = ("line", "function", "file", "library", "stack")
Verdict = Literal["leaked", "growing", "in use at exit"]
VERDICTS: tuple[Verdict, ...] = ("leaked", "growing", "in use at exit")

OWN_CODE = "the program's own code"
STANDARD_LIBRARY = "Python's standard library"
NO_STACK = "no stack was recorded"

_PACKAGES = re.compile(r".*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"(?:.*/)?lib(?:64)?/python3[^/]*/|<frozen ")
# Every allocation passes through these: they are never what a person looks for.
_CUDA_ITSELF = re.compile(r"lib(?:cuda|cudart|cupti|vramtracer|vramvirtual\w*)[.-]")


# Of a row with many stacks, the largest are enough to say where they come from.
_STACKS_COMPARED, _DEEPEST_COMPARED, _NEARLY_ALL = 64, 256, 0.95


# ---- places ----


@lru_cache(maxsize=65536)
def is_installed(file: str) -> bool:
    """Whether *file* belongs to an installed package or to Python itself, not to the program."""
    return _PACKAGES.match(file) is not None or _STANDARD.match(file) is not None


@lru_cache(maxsize=65536)
def shown_file(file: str) -> str:
    """*file* without the folder that packages are installed in."""
    found = _PACKAGES.match(file) or _STANDARD.match(file)
    return file[found.end() :] if found and not file.startswith("<") else file


@lru_cache(maxsize=65536)
def _library(language: str, file: str) -> str:
    name = file.rpartition("/")[2]
    if language == "native":
        return name or "unknown library"
    if found := _PACKAGES.match(file):
        return file[found.end() :].partition("/")[0].removesuffix(".py")
    return STANDARD_LIBRARY if _STANDARD.match(file) else OWN_CODE


def library(stack: CallStack) -> str:
    """The library or package of the innermost frame; CUDA's own libraries are passed over."""
    frames = stack.frames
    if not frames:
        return NO_STACK
    frame = next((each for each in frames if not _is_cuda(each)), frames[0])
    return _library(frame.language, frame.file)


def place(stack: CallStack) -> Frame | None:
    """The frame that a person looks for: the innermost line of the program's own Python code.

    Where there is none, the innermost Python frame; then the innermost native one outside CUDA itself.
    """
    installed: Frame | None = None
    for frame in stack.frames:
        if frame.language == "python":
            if not is_installed(frame.file):
                return frame
            installed = installed or frame
    if installed is not None or not stack.frames:
        return installed
    return next((each for each in stack.frames if not _is_cuda(each)), stack.frames[0])


def caller(stack: CallStack) -> Frame | None:
    """Who called the place from another file of the program: where that is a wrapper, the line to look at."""
    at = place(stack)
    if at is None:
        return None
    outside = stack.frames[stack.frames.index(at) + 1 :]
    return next((frame for frame in outside if frame.file != at.file and _is_own(frame)), None)


def _is_own(frame: Frame) -> bool:
    return frame.language == "python" and not is_installed(frame.file)


def _is_cuda(frame: Frame) -> bool:
    return frame.language == "native" and _CUDA_ITSELF.match(frame.file.rpartition("/")[2]) is not None


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
    sites: list[Site]


def rows(view: TraceView, sites: Iterable[Site], by: By) -> list[AllocationRow]:
    """Gather *sites*; the largest row first."""
    key = _key(view, by)
    gathered: dict[Hashable, list[Site]] = {}
    for site in sites:
        gathered.setdefault(key(site.stack), []).append(site)
    found = [_row(view, members, by) for members in gathered.values()]
    found.sort(key=lambda row: (-row.nbytes, -row.count, row.label))
    return found


def _row(view: TraceView, sites: list[Site], by: By) -> AllocationRow:
    largest = max(sites, key=lambda site: site.nbytes)
    return AllocationRow(
        label=label(view, largest.stack, by),
        place=place(stack_of(view, largest.stack)) if by in ("line", "function", "stack") else None,
        stack=largest.stack,
        stacks=len({site.stack for site in sites}),
        nbytes=sum(site.nbytes for site in sites),
        count=sum(site.count for site in sites),
        kinds=tuple(dict.fromkeys(site.kind for site in sites)),
        gpus=tuple(dict.fromkeys(site.gpu for site in sites)),
        processes=tuple(dict.fromkeys(site.process for site in sites)),
        caller=_only_caller(view, sites) if by in ("line", "function", "stack") else None,
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
    return sum(site.nbytes for site in sites)


def stack_of(view: TraceView, number: int) -> CallStack:
    """The stack *number*; an empty one where the trace has none of that number."""
    return view.stacks[number] if 0 <= number < len(view.stacks) else CallStack()


def _key(view: TraceView, by: By) -> Callable[[int], Hashable]:
    if by == "stack":
        return lambda number: number

    @cache
    def key(number: int) -> Hashable:
        stack = stack_of(view, number)
        if by == "library":
            return library(stack)
        frame = place(stack)
        if frame is None:
            return None
        if by == "line":
            return frame
        return frame.file if by == "file" else (frame.function, frame.file)

    return key


def label(view: TraceView, number: int, by: By) -> str:
    """What a row is called, in one line."""
    stack = stack_of(view, number)
    if by == "library":
        return library(stack)
    frame = place(stack)
    if frame is None:
        return NO_STACK
    return shown_file(frame.file) if by == "file" else f"{frame.function} {position(frame)}"


def position(frame: Frame) -> str:
    """``train.py:40``, or ``libnccl.so.2+0x1f40`` for native code."""
    if frame.language == "native":
        return f"{frame.file.rpartition('/')[2]}+{frame.line:#x}"
    return f"{shown_file(frame.file)}:{frame.line}"


def on_gpu(sites: Iterable[Site]) -> list[Site]:
    """Those that occupy memory of a GPU; blocks of frameworks lie inside them."""
    return [site for site in sites if site.kind in ON_GPU]


def leaks_of(view: TraceView, verdict: Verdict) -> list[LeakSite]:
    return [leak for leak in view.leaks if leak.verdict == verdict]


def churn_rows(view: TraceView, by: By) -> list[tuple[AllocationRow, int, float]]:
    """Rows with the median life of their largest stack and allocations a second; the most pairs first."""
    by_stack: dict[int, list[ChurnSite]] = {}
    for each in view.churn:
        by_stack.setdefault(each.site.stack, []).append(each)
    found = []
    for row in rows(view, (each.site for each in view.churn), by):
        theirs = by_stack[row.stack]
        life = max(theirs, key=lambda each: each.site.count).median_life_ns
        found.append((row, life, sum(each.per_second for each in theirs)))
    found.sort(key=lambda each: -each[0].count)
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
    return replace(
        view,
        gpus=tuple(each for each in view.gpus if each.gpu in gpus),
        allocations=tuple(each for each in view.allocations if each.gpu in gpus),
        peak=tuple(each for each in view.peak if each.gpu in gpus),
        leaks=tuple(each for each in view.leaks if each.site.gpu in gpus),
        timeline=tuple(each for each in view.timeline if each.gpu in gpus),
        churn=tuple(each for each in view.churn if each.site.gpu in gpus),
        holes=tuple(each for each in view.holes if each.gpu in gpus),
        failures=tuple(each for each in view.failures if each.gpu in gpus),
        before=tuple(each for each in view.before if each.gpu in gpus),
        frameworks=tuple(each for each in view.frameworks if each.gpu in gpus),
    )


def _with_processes(view: TraceView, pids: Collection[int]) -> TraceView:
    known = {process.pid for process in view.processes}
    for pid in pids:
        if pid not in known:
            there = ", ".join(map(str, sorted(known)))
            raise UsageError(f"the trace has no process {pid}", hint=f"it has {there}")
    wanted = {process.index for process in view.processes if process.pid in pids}
    return replace(
        view,
        processes=tuple(each for each in view.processes if each.index in wanted),
        allocations=tuple(each for each in view.allocations if each.process in wanted),
        peak=tuple(each for each in view.peak if each.process in wanted),
        leaks=tuple(each for each in view.leaks if each.site.process in wanted),
        churn=tuple(each for each in view.churn if each.site.process in wanted),
        holes=tuple(each for each in view.holes if each.process in wanted),
        failures=tuple(each for each in view.failures if each.process in wanted),
        gaps=tuple(each for each in view.gaps if each.process in wanted),
        marks=tuple(each for each in view.marks if each.process in wanted),
        before=tuple(each for each in view.before if each.process in wanted),
        frameworks=tuple(each for each in view.frameworks if each.process in wanted),
    )


# ---- two traces compared ----


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


def differences(
    before: TraceView, after: TraceView, pick: Callable[[TraceView], Sequence[Site]], by: By
) -> list[DiffRow]:
    """What changed, the largest growth first. Lines are not compared: code moves."""
    old, new = _by_code(before, pick(before), by), _by_code(after, pick(after), by)
    found = []
    for key in old.keys() | new.keys():
        first, second = old.get(key), new.get(key)
        shown, view = (second, after) if second else (first, before)
        assert shown is not None
        stack = stack_of(view, shown.stack)
        found.append(
            DiffRow(
                label=label(view, shown.stack, by),
                place=place(stack) if by in ("line", "function", "stack") else None,
                caller=caller(stack) if by == "stack" else None,
                before_nbytes=first.nbytes if first else 0,
                after_nbytes=second.nbytes if second else 0,
                before_count=first.count if first else 0,
                after_count=second.count if second else 0,
            )
        )
    found.sort(key=lambda row: (-row.change, -row.after_nbytes, row.label))
    return found


class _Sum(Struct):
    stack: int
    largest: int
    nbytes: int = 0
    count: int = 0


def _by_code(view: TraceView, sites: Sequence[Site], by: By) -> dict[Hashable, _Sum]:
    @cache
    def key(number: int) -> Hashable:
        stack = stack_of(view, number)
        if by == "library":
            return library(stack)
        if by == "stack":
            return tuple((frame.function, _same_file(frame.file)) for frame in stack.frames)
        frame = place(stack)
        if frame is None:
            return None
        file = _same_file(frame.file)
        return file if by == "file" else (frame.function, file)

    sums: dict[Hashable, _Sum] = {}
    for site in sites:
        total = sums.setdefault(key(site.stack), _Sum(site.stack, site.nbytes))
        total.nbytes += site.nbytes
        total.count += site.count
        if site.nbytes > total.largest:
            total.stack, total.largest = site.stack, site.nbytes
    return sums


@lru_cache(maxsize=65536)
def _same_file(file: str) -> str:
    """Name a file so that two checkouts of a program agree: by its name, or from the package on."""
    return shown_file(file) if is_installed(file) else file.rpartition("/")[2]

"""The figures of a trace as columns of numbers, small enough to travel inside the page.

Stacks become a tree (a node is its parent and a frame, parents first), texts are written once, and what
several lists of the trace say about one place (stack, kind, GPU, process) is one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

from msgspec import Struct

from vram.model.trace import (
    BLOCKS,
    ON_GPU,
    ON_HOST,
    OUTSIDE_FRAMEWORKS,
    Frame,
    Holes,
    MemoryKind,
    Site,
    TraceView,
    stack_of,
)
from vram.trace.places import NO_STACK, executables, function_name, package, shown_frames
from vram.trace_report.rows import SiteKey, site_key
from vram.trace_report.windows import (
    UNNAMED,
    PlaceInWindow,
    answers,
    changed_rows,
    churn_rows,
    is_attached,
    level_sentence,
    most_rows,
    page_sentences,
    rate,
)
from vram.trace_report.words import (
    PAGE_VERDICT_REASONS,
    VERDICTS,
    page_command,
    page_framework_name,
    recorded,
    sentences,
    shortened,
)

MAX_PLACES = 20_000
MAX_MARKS = 2_000
MAX_FAILURES = 1_000
MAX_BLOCKS = 4_000

_TOGETHER = -(2**64)
"""Stands for the stack of the smaller places; no trace has such a number."""

VERDICT_ORDER = ("", *reversed(VERDICTS))
"""Index 0: everything was freed. The last is the worst."""

GROUPS = {
    "gpu": "GPU memory",
    "blocks": "Blocks of frameworks",
    "host": "Pinned host memory",
    "other": "Opened, imported, reserved",
}
"""What may be summed: in a group each byte counts once; the groups overlap."""


def group(kind: MemoryKind) -> str:
    if kind in ON_GPU:
        return "gpu"
    if kind in BLOCKS:
        return "blocks"
    return "host" if kind in ON_HOST else "other"


class Place(Struct, kw_only=True):
    """What all lists of a trace say about one stack, kind, GPU and process."""

    stack: int
    kind: MemoryKind
    gpu: int | None
    process: int
    allocated: int = 0
    allocations: int = 0
    peak: int = 0
    peak_count: int = 0
    left: int = 0
    left_count: int = 0
    verdict: int = 0
    churn: int = 0
    churn_count: int = 0
    median_life_ns: int = 0
    window: int = 0
    window_count: int = 0

    def add(self, other: Place) -> None:
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.verdict = max(self.verdict, other.verdict)


_ADDED = (
    *("allocated", "allocations", "peak", "peak_count", "left", "left_count", "churn", "churn_count"),
    *("window", "window_count"),
)


def content(view: TraceView) -> dict[str, Any]:
    """Return what the page's script reads, as values that JSON has."""
    tree = StackTree()
    nodes: dict[int, int] = {}

    def node(stack: int) -> int:
        if stack not in nodes:
            nodes[stack] = tree.add(stack_of(view, stack).frames)
            tree.show(nodes[stack], *shown_frames(view, stack_of(view, stack)))
        return nodes[stack]

    names: dict[str, int] = {}
    places, smaller = _largest(_places(view, names))
    for name, number in names.items():
        nodes[number] = tree.add((Frame("native", name, HELD_BEFORE, 0),))
    if smaller:
        nodes[_TOGETHER] = tree.add((SMALLER,))
    rows = [*places, *smaller]
    kinds = sorted({place.kind for place in rows})
    return {
        "recorded": recorded(view),
        "sentences": [sentence._asdict() for sentence in sentences(view, page_sentences(view))],
        "windows": list(_windows(view, node)),
        "is_attached": is_attached(view) and bool(answers(view)),
        "verdicts": {"order": VERDICT_ORDER, "meaning": PAGE_VERDICT_REASONS},
        "groups": GROUPS,
        "duration_ns": view.duration_ns,
        "host_peak_nbytes": view.host_peak_nbytes,
        "processes": [
            {
                **_fields(process, "index", "pid", "python", "stacks", "end", "threads", "events"),
                "command": page_command(process),
            }
            for process in view.processes
        ],
        "gpus": [_fields(use, *_OF_A_GPU) for use in view.gpus],
        "kinds": [{"name": kind, "group": group(kind)} for kind in kinds],
        "places": {
            "node": [node(place.stack) for place in rows],
            "kind": [kinds.index(place.kind) for place in rows],
            "gpu": [place.gpu for place in rows],
            **{
                name: [getattr(place, name) for place in rows]
                for name in ("process", *_ADDED, "verdict", "median_life_ns")
            },
        },
        "leaks": _leaks(view, rows),
        "timeline": [
            {"gpu": gpu, **dict(zip(("time", *Level._fields[1:]), zip(*levels, strict=True), strict=True))}
            for gpu, levels in lanes(view).items()
        ],
        "marks": [_fields(mark, "process", "time_ns", "text") for mark in view.marks[:MAX_MARKS]],
        "failures": [
            {
                **_fields(each, "process", "time_ns", "kind", "gpu", "nbytes", "result"),
                "node": node(each.stack),
            }
            for each in view.failures[:MAX_FAILURES]
        ],
        "failures_in_all": view.failures_in_all,
        "gaps": [_fields(gap, "process", "start_ns", "end_ns") for gap in view.gaps],
        "holes": [{**_fields(holes, *_OF_HOLES), **_blocks(holes, node)} for holes in view.holes],
        "frameworks": [
            {
                **_fields(use, "process", "gpu", "at", "reserved_nbytes", "used_nbytes", "note"),
                "framework": page_framework_name(use.framework),
                "is_rest": use.framework == OUTSIDE_FRAMEWORKS,
            }
            for use in view.frameworks
        ],
        # Last: by now every stack is known.
        **tree.columns(executables(view.processes)),
    }


_OF_A_GPU = (
    *("gpu", "name", "total_nbytes", "peak_nbytes", "peak_ns", "end_nbytes"),
    *("allocated_nbytes", "allocations"),
)
_OF_HOLES = ("gpu", "process", "at_ns", "live_nbytes", "holes", "hole_nbytes", "largest_hole")


def _fields(each: Struct, *names: str) -> dict[str, Any]:
    """What *each* says under these names; foreign text is made inert and short."""
    values = {name: getattr(each, name) for name in names}
    return {name: shortened(value) if isinstance(value, str) else value for name, value in values.items()}


def _blocks(holes: Holes, node: Callable[[int], int]) -> dict[str, Any]:
    blocks = sorted(sorted(holes.blocks, key=lambda block: -block[1])[:MAX_BLOCKS])
    return {
        # JavaScript's numbers are exact up to 2^53: addresses are given from the lowest on.
        "lowest": hex(blocks[0][0]) if blocks else "",
        "address": [address - blocks[0][0] for address, _, _ in blocks],
        "size": [nbytes for _, nbytes, _ in blocks],
        "node": [node(stack) for _, _, stack in blocks],
    }


# ---- places ----


def _places(view: TraceView, names: dict[str, int]) -> list[Place]:
    """*names* gets those of memory from before recording, which has no stack, and the number that stands for
    one."""
    places: dict[SiteKey, Place] = {}

    def place(site: Site, name: str = "") -> Place:
        stack, kind, gpu, process = key = site_key(site)
        if name:
            stack = names.setdefault(name, -1 - len(names))
            key = (stack, kind, gpu, process)
        if key not in places:
            places[key] = Place(stack=stack, kind=kind, gpu=gpu, process=process)
        return places[key]

    for site in view.allocations:
        row = place(site)
        row.allocated += site.nbytes
        row.allocations += site.count
    at_peak = {site_key(site) for site in view.peak}
    blocks = (site for use in view.frameworks if use.at == "peak" for site in use.sites)
    for site in (*view.peak, *(site for site in blocks if site_key(site) not in at_peak)):
        row = place(site)
        row.peak += site.nbytes
        row.peak_count += site.count
    for leak in view.leaks:
        row = place(leak.site)
        row.left += leak.site.nbytes
        row.left_count += leak.site.count
        row.verdict = max(row.verdict, VERDICT_ORDER.index(leak.verdict))
    for churn in view.churn:
        row = place(churn.site)
        row.churn += churn.site.nbytes
        row.churn_count += churn.site.count
        row.median_life_ns = churn.median_life_ns
    for window in answers(view):
        for each in window.places:
            row = place(each.site, each.name)
            row.window += each.site.nbytes
            row.window_count += each.site.count
            if each.churns and not row.churn_count:
                row.churn, row.churn_count = each.made_nbytes, each.made
                row.median_life_ns = each.median_life_ns or 0
    # A context and a pool have no size of their own.
    sized = (
        row for row in places.values() if row.allocated or row.peak or row.left or row.churn or row.window
    )
    return sorted(sized, key=lambda row: (-row.peak, -row.window, -row.left, -row.allocated))


# ---- windows ----

MAX_WINDOW_ROWS = 20


def _windows(view: TraceView, node: Callable[[int], int]) -> Iterator[dict[str, Any]]:
    """The lists of each window that answers: what held most, what grew, what churns."""
    for window in answers(view):
        alone = [window]
        yield {
            **_fields(window, "process", "gpu", "highest_nbytes", "highest_ns", "trend"),
            "title": level_sentence(window, attached=is_attached(view)),
            "most": [
                _window_row(view, each, node, each.row.nbytes, f"{each.row.count:,} live")
                for each in most_rows(view, alone, "line")[:MAX_WINDOW_ROWS]
            ],
            "grew": [
                _window_row(view, each, node, each.change, f"{each.made:,} made, {each.freed:,} freed")
                for each in changed_rows(view, alone, "line")[:MAX_WINDOW_ROWS]
                if each.growing
            ],
            "churn": [
                _window_row(
                    view,
                    each,
                    node,
                    each.made_nbytes,
                    f"{each.made:,} times, {each.per_second:,.0f} and {rate(each.nbytes_per_second)}",
                )
                for each in churn_rows(view, alone, "line")[:MAX_WINDOW_ROWS]
            ],
        }


def _window_row(
    view: TraceView, each: PlaceInWindow, node: Callable[[int], int], nbytes: int, facts: str
) -> dict[str, Any]:
    name = each.name or (UNNAMED if each.base_count and not each.row.stack else "")
    return {"nbytes": nbytes, "node": node(each.row.stack), "name": shortened(name), "facts": facts}


def _largest(places: list[Place]) -> tuple[list[Place], list[Place]]:
    """The rows to show, and the rest summed by kind, GPU and process, so that sums stay right."""
    rest: dict[SiteKey, Place] = {}
    for row in places[MAX_PLACES:]:
        key = (_TOGETHER, row.kind, row.gpu, row.process)
        if key not in rest:
            rest[key] = Place(stack=_TOGETHER, kind=row.kind, gpu=row.gpu, process=row.process)
        rest[key].add(row)
    return places[:MAX_PLACES], list(rest.values())


def _leaks(view: TraceView, rows: list[Place]) -> list[dict[str, Any]]:
    """Those whose place is shown by itself."""
    by_key = {(row.stack, row.kind, row.gpu, row.process): at for at, row in enumerate(rows)}
    return [
        {
            "place": at,
            **_fields(leak.site, "nbytes", "count"),
            **_fields(leak, "verdict", "first_ns", "last_ns", "freed", "largest"),
        }
        for leak in view.leaks
        if (at := by_key.get(site_key(leak.site))) is not None
    ]


# ---- the timeline ----

MAX_STRETCHES = 8192
"""In the whole time; a view has about two thousand."""


class Level(NamedTuple):
    """The live bytes from ``time_ns`` to the next one."""

    time_ns: int
    highest: int
    lowest: int
    last: int


def lanes(view: TraceView) -> dict[int | None, list[Level]]:
    """The levels of each GPU, in the order of the GPUs."""
    points: dict[int | None, list[Level]] = {use.gpu: [] for use in view.gpus}
    for point in view.timeline:
        level = Level(point.time_ns, point.highest, point.lowest, point.last)
        points.setdefault(point.gpu, []).append(level)
    stretch = _stretch_ns(view)
    return {
        gpu: _extend(sorted(levels), stretch, view.duration_ns) for gpu, levels in points.items() if levels
    }


def _stretch_ns(view: TraceView) -> int:
    """How long a point lasts. The view does not say; its times are multiples of it."""
    times = sorted({point.time_ns for point in view.timeline})
    end = max(view.duration_ns, times[-1] if times else 0, 1)
    common = gcd(*times)
    if common * MAX_STRETCHES >= end:
        return common
    return min((later - time for time, later in pairwise(times)), default=end)


def _extend(levels: list[Level], stretch_ns: int, duration_ns: int) -> list[Level]:
    found: list[Level] = []
    following = [level.time_ns for level in levels[1:]] + [duration_ns]
    for level, next_ns in zip(levels, following, strict=True):
        found.append(level)
        end_ns = level.time_ns + stretch_ns
        if end_ns < next_ns and not level.highest == level.lowest == level.last:
            found.append(Level(end_ns, level.last, level.last, level.last))
    return found


# ---- stacks ----

DEEPEST = 256

NO_FRAMES = Frame("native", NO_STACK, "", 0)
SMALLER = Frame("native", "smaller places, together", "", 0)
HELD_BEFORE = "held before recording"
OUTER = Frame("native", "outer frames, left out", "", 0)


class StackTree:
    """Stacks, frames and texts, each written once. A node's parent comes before it."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.frames: dict[Frame, int] = {}
        self.nodes: dict[tuple[int, int], int] = {}
        self.shown: dict[int, tuple[int, int]] = {}

    def show(self, node: int, place: Frame | None, calling: Frame | None) -> None:
        """The frames that a stack is shown with: its place, and who called that."""
        at, by = (-1 if frame is None else self.frames.get(frame, -1) for frame in (place, calling))
        self.shown[node] = at, by

    def add(self, frames: tuple[Frame, ...]) -> int:
        """The node of a stack (innermost frame first)."""
        node = -1
        outermost_first = [*reversed(frames[:DEEPEST])] or [NO_FRAMES]
        if len(frames) > DEEPEST:
            outermost_first.insert(0, OUTER)
        for frame in outermost_first:
            number = self.frames.setdefault(frame, len(self.frames))
            node = self.nodes.setdefault((node, number), len(self.nodes))
        return node

    def columns(self, programs: Mapping[str, str]) -> dict[str, Any]:
        number = self._number
        frames = {
            "native": [int(frame.language == "native") for frame in self.frames],
            "has_line": [int(frame.has_line) for frame in self.frames],
            "function": [number(function_name(frame)) for frame in self.frames],
            "file": [number(frame.file) for frame in self.frames],
            "line": [frame.line for frame in self.frames],
            "package": [
                number(package(frame, programs)) if frame.file else number("unknown") for frame in self.frames
            ],
        }
        parents, frame_of_node = zip(*self.nodes, strict=True) if self.nodes else ((), ())
        return {
            "texts": list(self.texts),
            "frames": frames,
            "nodes": {"parent": parents, "frame": frame_of_node},
            "shown": {
                "node": list(self.shown),
                "place": [place for place, _ in self.shown.values()],
                "caller": [calling for _, calling in self.shown.values()],
            },
        }

    def _number(self, text: str) -> int:
        return self.texts.setdefault(shortened(text), len(self.texts))

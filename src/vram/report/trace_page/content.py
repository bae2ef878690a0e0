"""The figures of a trace as columns of numbers, small enough to travel inside the page.

Stacks become a tree (a node is its parent and a frame, parents first), texts are written once, and what
several lists of the trace say about one place (stack, kind, GPU, process) is one row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from vram.model.trace import (
    BLOCKS,
    ON_GPU,
    ON_HOST,
    OUTSIDE_FRAMEWORKS,
    BlockUse,
    FailedAllocation,
    HeldBefore,
    Holes,
    MemoryKind,
    Site,
    TraceView,
    stack_of,
)
from vram.report.trace_page.lanes import lanes
from vram.report.trace_page.packages import executables
from vram.report.trace_page.phrases import (
    command_line,
    framework_name,
    recorded,
    sentences,
    shortened,
)
from vram.report.trace_page.stack_tree import SMALLER, StackTree
from vram.report.trace_rows import SiteKey, site_key
from vram.report.trace_words import PAGE_VERDICT_REASONS, VERDICTS

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

    def add(self, other: Place) -> None:
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.verdict = max(self.verdict, other.verdict)


_ADDED = ("allocated", "allocations", "peak", "peak_count", "left", "left_count", "churn", "churn_count")


def content(view: TraceView) -> dict[str, Any]:
    """Return what the page's script reads, as values that JSON has."""
    tree = StackTree()
    nodes: dict[int, int] = {}

    def node(stack: int) -> int:
        if stack not in nodes:
            nodes[stack] = tree.add(stack_of(view, stack).frames)
        return nodes[stack]

    places, smaller = _largest(_places(view))
    if smaller:
        nodes[_TOGETHER] = tree.add((SMALLER,))
    rows = [*places, *smaller]
    kinds = sorted({place.kind for place in rows})
    return {
        "recorded": recorded(view),
        "sentences": [sentence._asdict() for sentence in sentences(view)],
        "verdicts": {"order": VERDICT_ORDER, "meaning": PAGE_VERDICT_REASONS},
        "groups": GROUPS,
        "duration": view.duration_ns,
        "events": view.events,
        "host_peak": view.host_peak_nbytes,
        "processes": _processes(view),
        "gpus": _gpus(view),
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
        "timeline": _timeline(view),
        "marks": [
            {"process": mark.process, "time": mark.time_ns, "text": shortened(mark.text)}
            for mark in view.marks[:MAX_MARKS]
        ],
        "failures": [_failure(failure, node) for failure in view.failures[:MAX_FAILURES]],
        "failures_in_all": view.failures_in_all,
        "gaps": [
            {"process": gap.process, "reason": gap.reason, "start": gap.start_ns, "end": gap.end_ns}
            for gap in view.gaps
        ],
        "before": [_held_before(held) for held in view.before],
        "holes": [_holes(holes, node) for holes in view.holes],
        "frameworks": [_framework(use, node) for use in view.frameworks],
        # Last: by now every stack is known.
        **tree.columns(executables(view.processes)),
    }


# ---- places ----


def _places(view: TraceView) -> list[Place]:
    places: dict[SiteKey, Place] = {}

    def place(site: Site) -> Place:
        stack, kind, gpu, process = key = site_key(site)
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
    # A context and a pool have no size of their own.
    sized = (row for row in places.values() if row.allocated or row.peak or row.left or row.churn)
    return sorted(sized, key=lambda row: (-row.peak, -row.left, -row.allocated))


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
            "verdict": leak.verdict,
            "nbytes": leak.site.nbytes,
            "count": leak.site.count,
            "first": leak.first_ns,
            "last": leak.last_ns,
            "freed": leak.freed,
            "largest": leak.largest,
        }
        for leak in view.leaks
        if (at := by_key.get(site_key(leak.site))) is not None
    ]


# ---- the other lists ----


def _gpus(view: TraceView) -> list[dict[str, Any]]:
    return [
        {
            "gpu": use.gpu,
            "name": use.name and shortened(use.name),
            "total": use.total_nbytes,
            "peak": use.peak_nbytes,
            "peak_at": use.peak_ns,
            "end": use.end_nbytes,
            "allocated": use.allocated_nbytes,
            "allocations": use.allocations,
            "frees": use.frees,
        }
        for use in view.gpus
    ]


def _failure(failure: FailedAllocation, node: Callable[[int], int]) -> dict[str, Any]:
    return {
        "process": failure.process,
        "time": failure.time_ns,
        "kind": failure.kind,
        "gpu": failure.gpu,
        "nbytes": failure.nbytes,
        "result": failure.result,
        "node": node(failure.stack),
    }


def _held_before(held: HeldBefore) -> dict[str, Any]:
    return {
        "process": held.process,
        "gpu": held.gpu,
        "nbytes": held.nbytes,
        "source": shortened(held.source),
    }


def _processes(view: TraceView) -> list[dict[str, Any]]:
    return [
        {
            "index": process.index,
            "pid": process.pid,
            "parent": process.parent_pid,
            "command": command_line(process),
            "python": process.python and shortened(process.python),
            "attached": process.attached,
            "stacks": process.stacks,
            "end": process.end,
            "threads": process.threads,
            "events": process.events,
        }
        for process in view.processes
    ]


def _timeline(view: TraceView) -> list[dict[str, Any]]:
    names = ("time", "highest", "lowest", "last")
    return [
        {"gpu": gpu, **dict(zip(names, zip(*levels, strict=True), strict=True))}
        for gpu, levels in lanes(view).items()
    ]


def _holes(holes: Holes, node: Callable[[int], int]) -> dict[str, Any]:
    blocks = sorted(sorted(holes.blocks, key=lambda block: -block[1])[:MAX_BLOCKS])
    return {
        "gpu": holes.gpu,
        "process": holes.process,
        "at": holes.at_ns,
        "live": holes.live_nbytes,
        "spanned": holes.spanned_nbytes,
        "holes": holes.holes,
        "hole_nbytes": holes.hole_nbytes,
        "largest": holes.largest_hole,
        # JavaScript's numbers are exact up to 2^53: addresses are given from the lowest on.
        "lowest": hex(blocks[0][0]) if blocks else "",
        "address": [address - blocks[0][0] for address, _, _ in blocks],
        "size": [nbytes for _, nbytes, _ in blocks],
        "node": [node(stack) for _, _, stack in blocks],
    }


def _framework(use: BlockUse, node: Callable[[int], int]) -> dict[str, Any]:
    return {
        "process": use.process,
        "framework": framework_name(use.framework),
        "is_rest": use.framework == OUTSIDE_FRAMEWORKS,
        "gpu": use.gpu,
        "at": use.at,
        "reserved": use.reserved_nbytes,
        "used": use.used_nbytes,
        "note": use.note and shortened(use.note),
        "sites": [
            {"node": node(site.stack), "nbytes": site.nbytes, "count": site.count}
            for site in sorted(use.sites, key=lambda site: -site.nbytes)[:10]
        ],
    }

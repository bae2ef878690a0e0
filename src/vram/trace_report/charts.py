"""Charts of a trace in characters: live bytes over time, and how scattered the live allocations lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import GpuUse, Holes, Mark, TimelinePoint, TraceView, stack_of
from vram.report.layout import RenderOptions
from vram.trace_report.lines import (
    NOTHING,
    PlaceLabel,
    ReportOptions,
    gpu_heading,
    head,
    heading,
    missing_lines,
    moment,
    sentence,
    table,
)
from vram.trace_report.words import gpu_name
from vram.units import counted, size

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII_STEPS = " .:-=+*##"
_HEIGHT = 10
_LABEL = 11
_WIDEST_CHART = 160
_MAX_MARKS = 12
# Address ranges this far apart are drawn as separate pieces.
_APART = 1 << 30


# ---- live bytes over time ----


def highest_per_column(points: Sequence[TimelinePoint], duration_ns: int, width: int) -> list[int]:
    """The highest live bytes in each of *width* equal stretches of time."""
    columns = [-1] * width
    lasts = [-1] * width
    span = max(1, duration_ns)
    for point in points:
        at = min(width - 1, max(0, point.time_ns * width // span))
        columns[at] = max(columns[at], point.highest)
        lasts[at] = point.last
    live = 0
    for at in range(width):
        # What was live before goes on into this stretch.
        columns[at] = max(columns[at], live)
        live = lasts[at] if lasts[at] >= 0 else live
    return columns


def sparkline(view: TraceView, use: GpuUse, width: int, options: RenderOptions) -> str:
    """One line of *width* cells: the live bytes of a GPU over the whole recording."""
    points = [point for point in view.timeline if point.gpu == use.gpu]
    if not points or width <= 0:
        return ""
    columns = highest_per_column(points, view.duration_ns, width)
    top = max(1, max(columns))
    steps = _ASCII_STEPS if options.ascii else _EIGHTHS
    return "".join(steps[-(-value * 8 // top) if value > 0 else 0] for value in columns)


def timeline(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return a chart for each GPU, with what the program marked and what was not recorded."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen)]
    if not view.gpus:
        blocks += [Text(), sentence(NOTHING, screen, indent=0)]
    for use in view.gpus:
        blocks += [Text(), *_chart(view, use, screen)]
    if view.marks:
        blocks += [Text(), *_marks(view.marks, screen)]
    blocks += missing_lines(view, screen)
    return Group(*blocks)


def _chart(view: TraceView, use: GpuUse, options: RenderOptions) -> Iterator[Text]:
    width = min(_WIDEST_CHART, options.width - _LABEL - 2)
    points = [point for point in view.timeline if point.gpu == use.gpu]
    columns = highest_per_column(points, view.duration_ns, width)
    top = max(1, max(columns))
    peak = f"peak {size(use.peak_nbytes)} after {moment(use.peak_ns)}, {size(use.end_nbytes)} at the end"
    yield gpu_heading(gpu_name(use.gpu), peak, options)
    axis = "|" if options.ascii else "│"
    for level in range(_HEIGHT, 0, -1):
        said = size(top * level // _HEIGHT) if level in (_HEIGHT, _HEIGHT // 2) else ""
        cells = "".join(_cell(value, level, top, options) for value in columns)
        yield Text.assemble((f"{said:>{_LABEL}}{axis}", "dim"), (cells.rstrip(), "cyan"))
    corner, line = ("+", "-") if options.ascii else ("└", "─")
    yield Text(f"{'0 B':>{_LABEL}}{corner}{line * width}", style="dim")
    yield from _below(view, width, options)
    yield Text(" " * (_LABEL + 1) + _times(view.duration_ns, width, options), style="dim")


def _cell(value: int, level: int, top: int, options: RenderOptions) -> str:
    """One cell of a column: full, empty, or its top in eighths."""
    eighths = -(-value * _HEIGHT * 8 // top) - (level - 1) * 8
    if options.ascii:
        return "#" if eighths > 4 else "." if eighths > 0 else " "
    return _EIGHTHS[min(8, max(0, eighths))]


def _below(view: TraceView, width: int, options: RenderOptions) -> Iterator[Text]:
    """Under the axis: marks by their numbers, and stretches that were not recorded."""
    span = max(1, view.duration_ns)

    def column(ns: int) -> int:
        return min(width - 1, max(0, ns * width // span))

    if view.marks:
        cells = [" "] * width
        for at, mark in enumerate(view.marks[:_MAX_MARKS], 1):
            label = str(at)
            start = min(column(mark.time_ns), width - len(label))
            if all(cell == " " for cell in cells[start : start + len(label)]):
                cells[start : start + len(label)] = label
        yield Text.assemble(("marks".rjust(_LABEL) + " ", "dim"), "".join(cells).rstrip())
    if view.gaps:
        cells = [" "] * width
        for gap in view.gaps:
            end = view.duration_ns if gap.end_ns is None else gap.end_ns
            for at in range(column(gap.start_ns), column(end) + 1):
                cells[at] = "x" if options.ascii else "░"
        label = "unrecorded".rjust(_LABEL)
        yield Text.assemble((label + " ", "dim"), ("".join(cells).rstrip(), "yellow"))


def _times(duration_ns: int, width: int, options: RenderOptions) -> str:
    """Times along the axis: at its beginning, its quarters and its end, where there is room."""
    cells = [" "] * width
    for quarter in (0, 4, 2, 1, 3):
        words = options.clean(moment(duration_ns * quarter // 4)) if quarter else "0"
        start = min(width * quarter // 4, width - cell_len(words))
        around = cells[max(0, start - 1) : start + len(words) + 1]
        if all(cell == " " for cell in around):
            cells[start : start + len(words)] = words
    return "".join(cells).rstrip()


def _marks(marks: Sequence[Mark], options: RenderOptions) -> Iterator[Text]:
    yield heading("Marks", options)
    for at, mark in enumerate(marks[:_MAX_MARKS], 1):
        lead = f"  {at:>2}  {options.clean(moment(mark.time_ns)):>9}  "
        yield Text(lead + options.short(mark.text, options.width - len(lead)))
    if len(marks) > _MAX_MARKS:
        yield Text(f"      {len(marks) - _MAX_MARKS:,} more: --json has all", style="dim")


# ---- holes ----


def holes(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return how scattered the live allocations of each process on each GPU are."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen)]
    if not view.holes:
        blocks += [Text(), sentence("No live allocation with an address was recorded.", screen, indent=0)]
    drawn: dict[tuple[int | None, int], Holes] = {}
    for each in view.holes:
        before = drawn.setdefault((each.gpu, each.process), each)
        if before is not each and before.blocks == each.blocks:
            blocks.append(sentence(f"The same after {moment(each.at_ns)}.", screen, style="dim"))
        else:
            blocks += [Text(), *_scattered(view, each, screen, options.most)]
    if view.holes:
        about = (
            "A hole is address space between live allocations of one piece. An allocator that keeps its"
            " segments (a pool, PyTorch's cache) cannot return a segment while one block in it is live, and"
            " can use a hole only for what fits into it."
        )
        blocks += [Text(), sentence(about, screen, style="dim", indent=0)]
    return Group(*blocks)


def _scattered(
    view: TraceView, each: Holes, options: RenderOptions, most: int | None
) -> Iterator[RenderableType]:
    pid = next((process.pid for process in view.processes if process.index == each.process), None)
    who = gpu_name(each.gpu) + (f", pid {pid}" if pid is not None and len(view.processes) > 1 else "")
    yield gpu_heading(who, f"{size(each.live_nbytes)} live after {moment(each.at_ns)}", options)
    if each.spanned_nbytes:
        share = f" ({100 * each.hole_nbytes / each.spanned_nbytes:.0f}% of the range)"
        words = (
            f"{counted(each.holes, 'hole')}, {size(each.hole_nbytes)} in all{share}; the largest"
            f" {size(each.largest_hole)}"
            if each.holes
            else "no holes"
        )
        yield sentence(words, options)
    if each.blocks:
        yield from _bar(each, options)
        largest = sorted(each.blocks, key=lambda block: -block[1])[:most]
        body = (
            (
                (f"{address:#x}", size(nbytes)),
                PlaceLabel.of_stack(stack_of(view, stack)).cell(options),
                (),
            )
            for address, nbytes, stack in largest
        )
        yield from table(("address", "size", "largest live allocations, allocated by"), body, options)


def _bar(each: Holes, options: RenderOptions) -> Iterator[Text]:
    """The pieces of the address range side by side: live, partly live, hole."""
    pieces = _pieces(each.blocks)
    whole = sum(end - start for start, end, _ in pieces)
    width = min(_WIDEST_CHART, options.width - 4) - (len(pieces) - 1)
    shown = pieces if len(pieces) <= width // 4 else pieces[: width // 4]
    text = Text("  ")
    for at, (start, end, blocks) in enumerate(shown):
        cells = max(1, (end - start) * width // max(1, whole))
        text.append("|" if at and options.ascii else "│" if at else "", style="dim")
        text.append(_cells(start, end, blocks, cells, options), style="cyan")
    yield text
    full, part, none = ("#", "+", ".") if options.ascii else ("█", "▒", "·")
    key = f"  {full} live  {part} partly  {none} hole"
    if len(pieces) > 1:
        key += f"   {len(pieces)} ranges that lie far apart"
    yield Text(options.clean(key) if options.ascii else key, style="dim")


Piece = tuple[int, int, list[tuple[int, int, int]]]


def _pieces(blocks: Sequence[tuple[int, int, int]]) -> list[Piece]:
    """Blocks that lie near each other, as (lowest, highest address, blocks)."""
    pieces: list[Piece] = []
    for block in sorted(blocks):
        address, nbytes, _ = block
        if pieces and address - pieces[-1][1] < _APART:
            start, end, members = pieces[-1]
            members.append(block)
            pieces[-1] = (start, max(end, address + nbytes), members)
        else:
            pieces.append((address, address + nbytes, [block]))
    return pieces


def _cells(
    start: int, end: int, blocks: Sequence[tuple[int, int, int]], cells: int, options: RenderOptions
) -> str:
    """How much of each cell's stretch is live."""
    span = max(1, end - start)
    live = [0] * cells
    for address, nbytes, _ in blocks:
        first = (address - start) * cells // span
        last = min(cells - 1, (address + max(1, nbytes) - 1 - start) * cells // span)
        for at in range(first, last + 1):
            left, right = start + at * span // cells, start + (at + 1) * span // cells
            live[at] += max(0, min(right, address + nbytes) - max(left, address))
    full, part, none = ("#", "+", ".") if options.ascii else ("█", "▒", "·")
    whole = span / cells
    return "".join(full if each >= 0.99 * whole else part if each else none for each in live)

"""``vram report FILE`` for people: one screen that says what was held, where it came from, what stayed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import BLOCKS, OUTSIDE_FRAMEWORKS, BlockUse, GpuUse, Site, TraceView, stack_of
from vram.report.layout import RenderOptions, shorten
from vram.report.trace_chart import sparkline
from vram.report.trace_lines import (
    allocations,
    before_sentences,
    branch_lines,
    failure_text,
    head,
    heading,
    missing,
    moment,
    place_cell,
    row_cell,
    sentence,
    table,
)
from vram.report.trace_places import caller, is_wrapper, place
from vram.report.trace_rows import AllocationRow, Rows, amounts, branches, leaks_of, on_gpu, rows
from vram.report.trace_words import VERDICTS, framework_name, gpu_name
from vram.units import counted, size

_PLACES = 3
_MAX_GPUS = 8
_MAX_LEAKS = 5
_MAX_NOTES = 4
_STYLES = {"leaked": "red", "growing": "yellow", "in use at exit": "dim"}


def summary(view: TraceView, options: RenderOptions) -> RenderableType:
    """Return the one screen; it names the command that shows more."""
    blocks: list[RenderableType] = [*head(view, options), Text()]
    blocks += _gpus(view, options)
    blocks += _at_peak(view, options)
    blocks += _never_freed(view, options)
    blocks += _failed(view, options)
    blocks += _notes(view, options)
    blocks += [Text(), _more(view, options)]
    return Group(*blocks)


# ---- per GPU ----


def _gpus(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    if not view.gpus:
        yield sentence("Nothing was allocated on a GPU.", options, indent=0)
    shown = view.gpus[:_MAX_GPUS]
    for use, figures in zip(shown, _aligned([_figures(use, options) for use in shown]), strict=True):
        line = Text.assemble((options.clean(gpu_name(use.gpu)), "bold"), "  ", options.clean(figures))
        room = options.width - line.cell_len - 2
        if room >= 24:
            yield line.append("  ").append(sparkline(view, use, min(room, 60), options), style="cyan")
        else:
            yield line
            if len(view.gpus) <= 2:
                yield Text(" " * 7 + sparkline(view, use, options.width - 8, options), style="cyan")
        yield from _frameworks(view, use, options)
    if len(view.gpus) > _MAX_GPUS:
        yield Text(f"{len(view.gpus) - _MAX_GPUS} more GPUs: --gpu N shows one", style="dim")
    if view.host_peak_nbytes:
        yield Text.assemble(("host", "bold"), f"   peak {size(view.host_peak_nbytes)} of pinned memory")


def _figures(use: GpuUse, options: RenderOptions) -> tuple[str, ...]:
    of = f" of {size(use.total_nbytes)}" if use.total_nbytes else ""
    name = [f"{options.clean(use.name)} ·" if use.name else ""] if options.is_wide else []
    count = f" · {allocations(use.allocations)}" if options.is_wide or not of else ""
    return (
        *name,
        f"peak {size(use.peak_nbytes)}{of}",
        f"after {moment(use.peak_ns)} · {size(use.end_nbytes)}",
        f"at the end{count}",
    )


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    """The parts of each line under those of the others."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=False)]
    return [
        " ".join(part.ljust(width) for part, width in zip(line, widths, strict=False)).strip()
        for line in lines
    ]


def _frameworks(view: TraceView, use: GpuUse, options: RenderOptions) -> Iterator[RenderableType]:
    for words in framework_sentences(view, use.gpu):
        yield sentence(words, options, style="dim", indent=7)


def blocks_at_peak(view: TraceView, gpu: int | None) -> list[BlockUse]:
    """Frameworks' accounts of a GPU's highest moment that say which place holds what."""
    return [block for block in view.frameworks if block.at == "peak" and block.gpu == gpu and block.sites]


def framework_sentences(view: TraceView, gpu: int | None) -> list[str]:
    """How each framework used what it took from the driver, at the peak; at the end if only that is known."""
    sums: dict[tuple[str, str], list[int]] = {}
    for block in view.frameworks:
        if block.gpu == gpu and block.reserved_nbytes:
            total = sums.setdefault((block.framework, block.at), [0, 0])
            total[0] += block.reserved_nbytes
            total[1] += block.used_nbytes
    return [
        _framework_sentence(name, at, *total)
        for (name, at), total in sums.items()
        if at == "peak" or (name, "peak") not in sums
    ]


def _framework_sentence(name: str, at: str, reserved: int, used: int) -> str:
    when = "" if at == "peak" else " at the end"
    if name == OUTSIDE_FRAMEWORKS:
        return f"{OUTSIDE_FRAMEWORKS}{when}: {size(reserved)} (cuBLAS, NCCL, code and other libraries)"
    return (
        f"{framework_name(name)}{when}: {size(reserved)} taken from the driver, {size(used)} of it in use,"
        f" {size(max(0, reserved - used))} cached"
    )


# ---- places ----


def _at_peak(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    found, whole = top_places(view)
    if not found:
        return
    yield Text()
    yield heading("Most at the peak", options)
    body = (
        (
            (size(row.nbytes), _share(row.nbytes, whole), f"{row.count:,}"),
            row_cell(row, options, _on(row) if len(view.gpus) > 1 else ""),
            branch_lines(branches(view, row)[:2], 6, options) if row.stacks > 1 else (),
        )
        for row in found[:_PLACES]
    )
    yield from table(("size", "share", "count", "allocated by"), body, options)


def held_at_peak(view: TraceView, gpu: int | None) -> list[Site]:
    """Who held a GPU's memory at its highest moment.

    A framework's blocks stand for the memory that it took from the driver, where they were recorded: the
    line that made it take a segment says nothing about who uses that.
    """
    blocks = blocks_at_peak(view, gpu)
    known = {block.process for block in blocks}
    driver = (site for site in on_gpu(view.peak) if site.gpu == gpu and site.process not in known)
    return [*(site for block in blocks for site in block.sites), *driver]


def top_places(view: TraceView) -> tuple[Rows, int]:
    """The places that held most at the peak of any GPU, and what all held."""
    gpus = [use.gpu for use in view.gpus]
    driver = sum(site.nbytes for site in on_gpu(view.peak) if site.gpu in gpus)
    found = rows(view, (site for gpu in gpus for site in held_at_peak(view, gpu)), "line")
    # A framework also tells of what it took before recording began, which the driver's calls do not.
    return found, max(driver, found.nbytes_from(0))


def _on(row: AllocationRow) -> str:
    return ", ".join(map(gpu_name, row.gpus)) if len(row.gpus) < 3 else f"{len(row.gpus)} GPUs"


def _share(nbytes: int, whole: int) -> str:
    return f"{100 * nbytes / whole:.0f}%" if whole else ""


def _never_freed(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    yield Text()
    if not view.leaks:
        yield heading("Never freed: nothing", options)
        return
    yield heading("Never freed", options)
    gathered = {
        verdict: rows(view, (leak.site for leak in leaks_of(view, verdict)), "line")
        for verdict in VERDICTS[:2]
    }
    serious = [(verdict, row) for verdict, found in gathered.items() for row in found[:_MAX_LEAKS]]
    for verdict, row in serious[:_MAX_LEAKS]:
        what = f"{size(row.nbytes)} in {allocations(row.count)}"
        mark = "!" if options.ascii else "●"
        lead = f"  {mark} {verdict:<8} {options.clean(what)}  "
        where = row_cell(row, options)(options.width - cell_len(lead))
        yield Text.assemble((lead, _STYLES[verdict]), where)
    more = sum(map(len, gathered.values())) - _MAX_LEAKS
    if more > 0:
        yield Text(f"    {more:,} places more: `vram report leaks`", style="dim")
    # The blocks of frameworks lie inside the driver's allocations: they are not added to them.
    held = [row for row in leaks_of(view, "in use at exit") if row.site.kind not in BLOCKS]
    if held:
        words = f"{amounts([leak.site for leak in held])}: in use at exit, no sign of a leak"
        mark = "o" if options.ascii else "○"
        yield sentence(words, options, mark=f"{mark} ", style="dim")


def _failed(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    if not view.failures_in_all:
        return
    yield Text()
    yield heading(f"{counted(view.failures_in_all, 'failed allocation')}", options)
    for failure in view.failures[:2]:
        lead = f"  {options.clean(failure_text(failure))}  "
        room = max(20, options.width - cell_len(lead))
        stack = stack_of(view, failure.stack)
        at = place(stack)
        cell = place_cell(at, options, calling=caller(stack), wraps=is_wrapper(view, at))
        yield Text.assemble(lead, cell(room))


def _notes(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    words = [*before_sentences(view), *missing(view)]
    if words:
        yield Text()
        yield heading("Not in this trace", options)
    for text in words[:_MAX_NOTES]:
        yield sentence(text, options, mark="- ")
    if len(words) > _MAX_NOTES:
        yield Text(f"  {len(words) - _MAX_NOTES} more: --json has all", style="dim")


def _more(view: TraceView, options: RenderOptions) -> RenderableType:
    file = shlex.join(view.paths)
    line = options.clean(f"More: vram report peak|leaks|timeline|churn|frag {file}")
    html = options.clean("; --html OUT for a page")
    if cell_len(line + html) <= options.width:
        line += html
    return Text(shorten(line, options.width, mark=options.clean("…")), style="dim")

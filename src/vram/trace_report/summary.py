"""A trace on one screen: what was held, where it came from, what stayed; which cards it would have fitted."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import (
    BLOCKS,
    OUTSIDE_FRAMEWORKS,
    BlockUse,
    CardFit,
    Fit,
    GpuNeed,
    GpuUse,
    Site,
    TraceView,
    stack_of,
)
from vram.report.layout import RenderOptions, shorten
from vram.trace.places import is_wrapper, place
from vram.trace_report import windows
from vram.trace_report.charts import sparkline
from vram.trace_report.lines import (
    NOTHING,
    Cell,
    PlaceLabel,
    ReportOptions,
    before_sentences,
    branch_lines,
    failure_text,
    head,
    heading,
    missing,
    moment,
    row_cell,
    sentence,
    table,
)
from vram.trace_report.rows import AllocationRow, Rows, allocations, amounts, branches, leaks_of, on_gpu, rows
from vram.trace_report.words import VERDICTS, framework_name, gpu_name
from vram.units import counted, size

Part = Callable[[TraceView, RenderOptions], Iterator[RenderableType]]

_PLACES = 3
_PLACES_BESIDE_A_WINDOW = 2
_MAX_GPUS = 8
_MAX_LEAKS = 5
_MAX_NOTES = 4
_STYLES = {"leaked": "red", "growing": "yellow", "not freed": "yellow", "in use at exit": "dim"}


def summary(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return the one screen; it names the command that shows more."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen), Text()]
    for part in _parts(view):
        blocks += part(view, screen)
    return Group(*blocks, Text(), _more(view, screen))


def _parts(view: TraceView) -> tuple[Part, ...]:
    """The answers first. In a process that goes on, nothing was held "at exit"."""
    if windows.is_attached(view) and view.windows:
        return _gpus, windows.summary_lines, _leaked, _failed, _notes
    return _gpus, _at_peak, windows.summary_lines, _never_freed, _failed, _notes


# ---- per GPU ----


def _gpus(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    if not view.gpus:
        yield sentence(NOTHING, options, indent=0)
    shown = view.gpus[:_MAX_GPUS]
    if windows.is_attached(view) and view.windows:
        yield from _since_attached(view, options)
        shown = ()
    for use, figures in zip(shown, _align([_figures(use, options) for use in shown]), strict=True):
        line = Text.assemble((options.clean(gpu_name(use.gpu)), "bold"), "  ", options.clean(figures))
        room = options.width - line.cell_len - 2
        if room >= 24:
            yield line.append("  ").append(sparkline(view, use, min(room, 60), options), style="cyan")
        else:
            yield line
            if len(view.gpus) <= 2:
                yield Text(" " * 7 + sparkline(view, use, options.width - 8, options), style="cyan")
        for words in framework_sentences(view, use.gpu):
            yield sentence(words, options, style="dim", indent=7)
    if len(view.gpus) > _MAX_GPUS:
        yield Text(f"{len(view.gpus) - _MAX_GPUS} more GPUs: --gpu N shows one", style="dim")
    if view.host_peak_nbytes:
        yield Text.assemble(("host", "bold"), f"   peak {size(view.host_peak_nbytes)} of pinned memory")


def _since_attached(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    """What each GPU held before, and how high it was since: peaks are those of the recording."""
    for use in view.gpus[:_MAX_GPUS]:
        theirs = [each for each in view.windows if each.gpu == use.gpu]
        for each in sorted(theirs, key=lambda window: window.framework is not None):
            words = windows.level_sentence(each, attached=True)
            yield windows.gpu_line(use.gpu, words, options, named=each.framework is None)
        line = sparkline(view, use, options.width - 8, options)
        if line and len(view.gpus) <= 2:
            yield Text(" " * 7 + line, style="cyan")


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


def _align(lines: list[tuple[str, ...]]) -> list[str]:
    """The parts of each line under those of the others."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=False)]
    return [
        " ".join(part.ljust(width) for part, width in zip(line, widths, strict=False)).strip()
        for line in lines
    ]


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
    found, whole = _top_places(view)
    if not found:
        return
    yield Text()
    yield heading("Most at the peak", options)
    body = (
        (
            (size(row.nbytes), f"{100 * row.nbytes / whole:.0f}%" if whole else "", f"{row.count:,}"),
            row_cell(row, options, _on(row) if len(view.gpus) > 1 else ""),
            branch_lines(branches(view, row)[:2], 6, options) if row.stacks > 1 else (),
        )
        for row in found[: _PLACES_BESIDE_A_WINDOW if windows.answers(view) else _PLACES]
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


def _top_places(view: TraceView) -> tuple[Rows, int]:
    """The places that held most at the peak of any GPU, and what all held."""
    gpus = [use.gpu for use in view.gpus]
    driver = sum(site.nbytes for site in on_gpu(view.peak) if site.gpu in gpus)
    found = rows(view, (site for gpu in gpus for site in held_at_peak(view, gpu)), "line")
    # A framework also tells of what it took before recording began, which the driver's calls do not.
    return found, max(driver, found.nbytes_from(0))


def _on(row: AllocationRow) -> str:
    return ", ".join(map(gpu_name, row.gpus)) if len(row.gpus) < 3 else f"{len(row.gpus)} GPUs"


def _never_freed(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    yield Text()
    shown = [row for row in view.leaks if row.verdict != "in use at exit" or row.site.kind not in BLOCKS]
    if not shown:
        yield heading("Never freed: nothing", options)
        return
    yield heading("Never freed", options)
    gathered = {
        verdict: rows(view, (leak.site for leak in leaks_of(view, verdict)), "line")
        for verdict in VERDICTS[:-1]
    }
    serious = [(verdict, row) for verdict, found in gathered.items() for row in found[:_MAX_LEAKS]]
    width = max([8, *(len(verdict) for verdict, _ in serious)])
    for verdict, row in serious[:_MAX_LEAKS]:
        what = f"{size(row.nbytes)} in {allocations(row.count)}"
        mark = "!" if options.ascii else "●"
        lead = f"  {mark} {verdict:<{width}} {options.clean(what)}  "
        where = row_cell(row, options)(options.width - cell_len(lead))
        yield Text.assemble((lead, _STYLES[verdict]), where)
        if row.wraps and row.caller is None:  # several lines call it: they say more than the wrapper does
            yield from branch_lines(branches(view, row)[:2], 6, options)
    more = sum(map(len, gathered.values())) - _MAX_LEAKS
    if more > 0:
        yield Text(f"    {more:,} places more: `vram report leaks`", style="dim")
    # The blocks of frameworks lie inside the driver's allocations: they are not added to them.
    held = [row for row in leaks_of(view, "in use at exit") if row.site.kind not in BLOCKS]
    if held:
        how_much = amounts([leak.site for leak in held])
        words = f"{how_much}: in use at exit, no sign of a leak (no place went on allocating)"
        mark = "o" if options.ascii else "○"
        yield sentence(words, options, mark=f"{mark} ", style="dim")


def _leaked(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    """What a destroyed context left behind, in a process that goes on."""
    leaked = tuple(leaks_of(view, "leaked"))
    if leaked:
        yield from _never_freed(replace(view, leaks=leaked), options)


def _failed(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    if not view.failures_in_all:
        return
    yield Text()
    yield heading(f"{counted(view.failures_in_all, 'failed allocation')}", options)
    for failure in view.failures[:2]:
        lead = f"  {options.clean(failure_text(failure))}  "
        room = max(20, options.width - cell_len(lead))
        stack = stack_of(view, failure.stack)
        label = PlaceLabel.of_stack(stack, wraps=is_wrapper(view, place(stack)))
        yield Text.assemble(lead, label.text(room, options))


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
    line = options.clean(f"More: vram report peak|window|leaks|timeline|churn|frag {file}")
    html = options.clean("; --html OUT for a page")
    if cell_len(line + html) <= options.width:
        line += html
    return Text(shorten(line, options.width, mark=options.clean("…")), style="dim")


# ---- which cards it would have fitted ----

_FIT_STYLES = {"fits": "green", "if caches shrink": "yellow", "too small": "red"}


def cards(view: TraceView, fit: Fit, options: ReportOptions) -> RenderableType:
    """Return the smallest card that fits, what was needed and what is not known; verbose: every card."""
    screen = options.screen
    blocks: list[RenderableType] = [sentence(_answer(fit), screen, indent=0), Text(), *head(view, screen)]
    if not fit.needs:
        return Group(*blocks)
    blocks += [Text(), *(sentence(_need(need), screen, indent=0) for need in fit.needs), Text()]
    if options.verbose:
        blocks += [*_cards_table(fit, screen), Text()]
    elif len(fit.cards) > 1:
        blocks += [sentence(f"-v lists all {len(fit.cards)} cards.", screen, indent=0), Text()]
    blocks += [sentence(words, screen, mark="- ", indent=0) for words in fit.assumptions]
    blocks += [Text(), heading("What a trace cannot know", screen)]
    blocks += [sentence(words, screen, mark="- ", indent=0) for words in fit.doubts]
    return Group(*blocks)


def _answer(fit: Fit) -> str:
    """The smallest card that fits; one that fits only with smaller caches is named with that."""
    if not fit.needs:
        return "Nothing was allocated on a GPU: it fits every card."
    if len(fit.cards) == 1:
        return _one_card(fit.cards[0])
    fitting = [each for each in fit.cards if each.verdict != "too small"]
    if not fitting:
        largest = max(fit.cards, key=lambda each: each.card.total_nbytes)
        return f"No card fits: {_named(largest)} lacks {size(-largest.left_nbytes)}."
    smallest = min(fitting, key=lambda each: (each.card.total_nbytes, each.verdict != "fits"))
    words = f"The smallest card that fits is {_named(smallest)}: {size(smallest.left_nbytes)} would be left"
    sure = [each for each in fitting if each.verdict == "fits"]
    if smallest.verdict != "fits":
        words += " if the framework's caches shrink"
        if sure:
            words += f"; as recorded it is {_named(min(sure, key=lambda each: each.card.total_nbytes))}"
    return f"{words}."


def _one_card(each: CardFit) -> str:
    if each.verdict == "too small":
        return f"It does not fit {_named(each)}: {size(-each.left_nbytes)} is missing."
    condition = "" if each.verdict == "fits" else " if the framework's caches shrink"
    return f"It fits {_named(each)}: {size(each.left_nbytes)} would be left{condition}."


def _named(each: CardFit) -> str:
    return f"{each.card.name} ({size(each.card.total_nbytes)})"


def _need(need: GpuNeed) -> str:
    parts = [f"{size(need.live_nbytes)} allocated"]
    if need.before_nbytes:
        parts.append(f"{size(need.before_nbytes)} held before recording began")
    if need.contexts:
        parts.append(f"{size(need.context_nbytes)} for {counted(need.contexts, 'context')}")
    words = f"{gpu_name(need.gpu)} needs {size(need.most)} at its peak: {' + '.join(parts)}"
    if need.cached_nbytes:
        words += (
            f"; {size(need.cached_nbytes)} of it was kept unused by a framework's allocator, so"
            f" {size(need.least)} is the least"
        )
    if need.name and need.total_nbytes:
        words += f". It was recorded on {need.name} with {size(need.total_nbytes)}"
    return f"{words}."


def _cards_table(fit: Fit, options: RenderOptions) -> list[Text]:
    body = (
        (
            (size(each.card.total_nbytes), size(each.left_nbytes).replace("-", "−")),
            _card_cell(each, options),
            (),
        )
        for each in fit.cards
    )
    return table(("memory", "left", "card"), body, options)


def _card_cell(each: CardFit, options: RenderOptions) -> Cell:
    def cell(width: int) -> Text:
        name = options.short(each.card.name, max(8, width - 22))
        return Text.assemble(f"{name:<26}", (each.verdict, _FIT_STYLES[each.verdict]))

    return cell

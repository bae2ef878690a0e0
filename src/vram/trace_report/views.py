"""The views of ``vram report``: what was live at the peak, what stayed, churn, what differs in two traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import Frame, LeakSite, Site, TraceView, Verdict, stack_of
from vram.report.layout import RenderOptions
from vram.trace_report.charts import holes, timeline
from vram.trace_report.lines import (
    NOTHING,
    PlaceLabel,
    Reporter,
    ReportOptions,
    branch_lines,
    gpu_heading,
    head,
    heading,
    missing_lines,
    moment,
    path_end,
    place_text,
    rest_line,
    row_cell,
    sentence,
    stack_lines,
    table,
)
from vram.trace_report.rows import (
    PICKS,
    AllocationRow,
    Differences,
    Rows,
    SiteKey,
    amounts,
    branches,
    churn_rows,
    differences,
    leaks_of,
    memory_of,
    on_gpu,
    rows,
    site_key,
)
from vram.trace_report.summary import blocks_at_peak, framework_sentences, held_at_peak, summary
from vram.trace_report.windows import answers, gpu_line, is_attached, level_sentence, most_lines, window
from vram.trace_report.words import VERDICT_REASONS, VERDICTS, framework_name, gpu_name
from vram.units import size

_INSIDE = "Frameworks' blocks lie inside what they took from the driver: the blocks say who uses it."
_STYLES: dict[Verdict, str] = {
    "leaked": "bold red",
    "growing": "bold yellow",
    "not freed": "bold yellow",
    "in use at exit": "bold",
}
# A branch of the call tree that holds less is gathered into one line.
_MIN_BRANCH = 0.01
_INDENT = 6


# ---- leaks ----


def leaks(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return what was never freed, by verdict, each with its reason."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen)]
    if not view.leaks:
        blocks += [Text(), heading("Everything that was allocated was freed again.", screen)]
    for verdict in VERDICTS:
        found = leaks_of(view, verdict)
        if found:
            blocks += [Text(), *_verdict(view, verdict, found, options)]
    blocks += missing_lines(view, screen)
    return Group(*blocks)


def _verdict(
    view: TraceView, verdict: Verdict, found: list[LeakSite], options: ReportOptions
) -> Iterator[RenderableType]:
    screen = options.screen
    title = f"{verdict.capitalize()}: {amounts([leak.site for leak in found])}"
    yield sentence(title, screen, style=_STYLES[verdict], indent=0)
    yield sentence(VERDICT_REASONS[verdict], screen, style="dim")
    if len({memory_of(leak.site) for leak in found} & {"gpu", "block"}) == 2:
        yield sentence(_INSIDE, screen, style="dim")
    gathered = rows(view, (leak.site for leak in found), options.by)
    by_site = {site_key(leak.site): leak for leak in found}
    is_short = verdict == "in use at exit" and not options.verbose
    body = (
        (
            (size(row.nbytes), f"{row.count:,}"),
            row_cell(row, screen),
            () if is_short else _below_leak(view, row, by_site, options),
        )
        for row in gathered[: options.most]
    )
    yield from table(("size", "count", "allocated by"), body, screen)
    yield from _rest(gathered, options)


def _below_leak(
    view: TraceView, row: AllocationRow, by_site: dict[SiteKey, LeakSite], options: ReportOptions
) -> Iterator[Text]:
    screen = options.screen
    facts = _leak_facts(row, [by_site[site_key(site)] for site in row.sites])
    for line in wrap(screen.clean(facts), screen.measure - _INDENT):
        yield Text(" " * _INDENT + line, style="dim")
    if not options.verbose and row.stacks > 1:
        yield from branch_lines(branches(view, row), _INDENT, screen)
    else:
        yield from stack_lines(stack_of(view, row.stack), row.place, _INDENT, screen, whole=options.verbose)


def _leak_facts(row: AllocationRow, leaks: list[LeakSite]) -> str:
    """When the allocations of a row were made, and how many others of its stacks were freed."""
    first, last = min(leak.first_ns for leak in leaks), max(leak.last_ns for leak in leaks)
    freed = sum(leak.freed for leak in leaks)
    when = f"at {moment(first)}" if first == last else f"from {moment(first)} to {moment(last)}"
    each = f", the largest {size(max(leak.largest for leak in leaks))}" if row.count > 1 else ""
    others = f"; {freed:,} others were freed" if freed else "; none was ever freed"
    return f"{when}{each}{others}"


def _below(view: TraceView, row: AllocationRow, options: ReportOptions) -> Iterator[Text]:
    """The whole stack on request; else who the allocations come from, where there are several."""
    if options.verbose:
        yield from stack_lines(stack_of(view, row.stack), row.place, _INDENT, options.screen, whole=True)
    elif row.stacks > 1 and row.place is not None:
        yield from branch_lines(branches(view, row), _INDENT, options.screen)


# ---- the peak ----


def peak(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return what was live on each GPU at its highest moment."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen)]
    if not view.gpus:
        blocks += [Text(), sentence(NOTHING, screen, indent=0)]
    for use in view.gpus:
        theirs = [each for each in answers(view) if each.gpu == use.gpu]
        for each in theirs:
            levels = level_sentence(each, attached=is_attached(view))
            blocks += [Text(), gpu_line(use.gpu, levels, screen)]
            blocks += most_lines(view, [each], options.most, screen, options.by)
        if theirs and not use.peak_nbytes:
            continue
        title = f"{size(use.peak_nbytes)} live after {moment(use.peak_ns)}, its highest moment"
        blocks += [Text(), gpu_heading(gpu_name(use.gpu), title, screen)]
        blocks += [sentence(words, screen) for words in framework_sentences(view, use.gpu)]
        used = blocks_at_peak(view, use.gpu)
        for framework in dict.fromkeys(block.framework for block in used):
            sites = [site for block in used if block.framework == framework for site in block.sites]
            title = f"{framework_name(framework)}'s blocks, by"
            blocks += _peak_table(view, sites, title, options, of_framework=True)
        driver = [site for site in on_gpu(view.peak) if site.gpu == use.gpu]
        title = "taken from the driver by" if used else "allocated by"
        blocks += _peak_table(view, driver, title, options)
    return Group(*blocks)


def _peak_table(
    view: TraceView, sites: Sequence[Site], title: str, options: ReportOptions, *, of_framework: bool = False
) -> Iterator[Text]:
    gathered = rows(view, sites, options.by)
    whole = gathered.nbytes_from(0)
    body = (
        (
            (size(row.nbytes), f"{100 * row.nbytes / whole:.1f}%" if whole else "", f"{row.count:,}"),
            row_cell(row, options.screen, kinds=not of_framework),
            _below(view, row, options),
        )
        for row in gathered[: options.most]
    )
    yield from table(("size", "share", "count", title), body, options.screen)
    yield from _rest(gathered, options)


def _rest(gathered: Rows, options: ReportOptions) -> list[Text]:
    shown = len(gathered) if options.most is None else options.most
    return rest_line(len(gathered) - shown, gathered.nbytes_from(shown), options.screen)


# ---- the call tree ----


class _Node:
    __slots__ = ("children", "count", "frame", "nbytes")

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.nbytes = self.count = 0
        self.children: dict[Frame, _Node] = {}

    def add(self, site: Site) -> None:
        self.nbytes += site.nbytes
        self.count += site.count

    def largest_first(self) -> list[_Node]:
        return sorted(self.children.values(), key=lambda child: -child.nbytes)


def tree(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return the call tree of what was live at the peak, outermost calls first."""
    blocks: list[RenderableType] = [*head(view, options.screen)]
    for use in view.gpus:
        title = f"{size(use.peak_nbytes)} live after {moment(use.peak_ns)}, by calls"
        blocks += [Text(), gpu_heading(gpu_name(use.gpu), title, options.screen)]
        blocks += _tree_lines(_call_tree(view, held_at_peak(view, use.gpu)), options)
    return Group(*blocks)


def _call_tree(view: TraceView, sites: Sequence[Site]) -> _Node:
    root = _Node(None)
    for site in sites:
        node = root
        node.add(site)
        for frame in reversed(stack_of(view, site.stack).frames):
            node = node.children.setdefault(frame, _Node(frame))
            node.add(site)
    return root


def _tree_lines(root: _Node, options: ReportOptions) -> Iterator[Text]:
    """Depth first, without recursion: a hostile stack may be deep."""
    screen = options.screen
    least = 0 if options.verbose else int(root.nbytes * _MIN_BRANCH)
    deepest = max(2, (screen.width - 50) // 2)
    pending: list[tuple[_Node, int, bool]] = [(child, 0, False) for child in root.largest_first()][::-1]
    printed = 0
    most = 0 if options.limit == 0 else max(options.limit * 6, 40)
    while pending:
        node, depth, is_chained = pending.pop()
        if node.nbytes < least or (most and printed >= most):
            continue
        printed += 1
        share = f"{100 * node.nbytes / root.nbytes:.1f}%" if root.nbytes else ""
        figures = "" if is_chained else f"{size(node.nbytes):>10} {share:>6}"
        lead = f"  {figures:17}  {'  ' * min(depth, deepest)}"
        yield Text.assemble(lead, place_text(node.frame, screen.width - cell_len(lead), screen))
        children = node.largest_first()
        # Calls in a row, without a branch, stay in one column: else every stack would run off the screen.
        is_chain = len(children) == 1 and children[0].nbytes == node.nbytes
        pending += [(child, depth if is_chain else depth + 1, is_chain) for child in children][::-1]
    unknown = root.nbytes - sum(child.nbytes for child in root.children.values())
    if unknown:
        yield Text(f"  {size(unknown):>10}          no stack was recorded", style="dim")
    if least:
        yield Text(screen.clean("  branches below 1% are left out; -v shows all"), style="dim")


# ---- churn ----


def churn(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return the places whose allocations were freed again soon."""
    screen = options.screen
    blocks: list[RenderableType] = [*head(view, screen), Text()]
    if not view.churn:
        blocks.append(sentence("No place allocated and freed again and again.", screen, indent=0))
        return Group(*blocks)
    about = (
        "Each pair of allocation and free below went to the driver, which costs microseconds to milliseconds"
        " and may wait for the GPU. A cache (a framework's allocator, cudaMallocAsync) would save them."
    )
    blocks += [sentence(about, screen, style="dim", indent=0), Text()]
    body = (
        (
            (f"{row.count:,}", _rate(per_second), size(row.nbytes), moment(life_ns)),
            row_cell(row, screen),
            _below(view, row, options),
        )
        for row, life_ns, per_second in churn_rows(view, options.by, options.most)
    )
    blocks += table(("pairs", "per second", "bytes in all", "median life", "allocated by"), body, screen)
    blocks += _rest(rows(view, (each.site for each in view.churn), options.by), options)
    return Group(*blocks)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


REPORTERS: dict[str, Reporter] = {
    "summary": summary,
    "peak": peak,
    "tree": tree,
    "leaks": leaks,
    "timeline": timeline,
    "churn": churn,
    "frag": holes,
    "window": window,
}
"""By the word of ``vram report``; "tree" is ``peak --tree``."""


# ---- two traces ----


def diff(before: TraceView, after: TraceView, options: ReportOptions) -> RenderableType:
    """Return what the second trace holds more than the first, at the peak and at the end."""
    screen = options.screen
    blocks: list[RenderableType] = []
    for letter, view in (("A", before), ("B", after)):
        name = f"{letter}  {', '.join(view.paths)}"
        blocks.append(Text(path_end(name, screen.width, screen), style="bold"))
        for use in view.gpus:
            words = f"{gpu_name(use.gpu)}: peak {size(use.peak_nbytes)}, {size(use.end_nbytes)} at the end"
            blocks.append(sentence(words, screen, indent=3))
    for title, pick in PICKS.items():
        found = differences(before, after, pick, options.by, options.most)
        if found.rows or pick(before) or pick(after):
            blocks += [Text(), *_changes(title, found, screen)]
    about = "Stacks are compared by function and file: a line that moved is the same."
    blocks += [Text(), sentence(about, screen, style="dim", indent=0)]
    return Group(*blocks)


def _changes(title: str, found: Differences, screen: RenderOptions) -> Iterator[RenderableType]:
    yield heading(f"{title.capitalize()}: {_signed(found.total)}", screen)
    if not found.rows:
        yield sentence("no place changed", screen, style="dim")
        return
    body = (
        (
            (_signed(row.change), size(row.before_nbytes), size(row.after_nbytes)),
            PlaceLabel(row.place, row.label, row.caller).cell(screen),
            (),
        )
        for row in found.rows
    )
    yield from table(("change", "in A", "in B", "allocated by"), body, screen)
    yield from rest_line(found.hidden, found.hidden_nbytes, screen)


def _signed(nbytes: int) -> str:
    return ("+" if nbytes > 0 else "") + size(nbytes)

"""Views of ``vram report`` that are tables: what was live at the peak, what stayed, churn, differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import Frame, GpuUse, LeakSite, Site, TraceView, Verdict, stack_of
from vram.report.layout import RenderOptions
from vram.report.trace_diff import PICKS, Differences, differences
from vram.report.trace_lines import (
    branch_lines,
    head,
    heading,
    missing,
    moment,
    path_end,
    place_cell,
    place_text,
    rest_line,
    row_cell,
    sentence,
    stack_lines,
    table,
)
from vram.report.trace_rows import (
    AllocationRow,
    By,
    Rows,
    amounts,
    branches,
    churn_rows,
    leaks_of,
    memory_of,
    on_gpu,
    rows,
    site_key,
)
from vram.report.trace_summary import (
    blocks_at_peak,
    framework_sentences,
    held_at_peak,
)
from vram.report.trace_words import VERDICT_REASONS, VERDICTS, framework_name, gpu_name
from vram.units import size

_INSIDE = "Frameworks' blocks lie inside what they took from the driver: the blocks say who uses it."
_STYLES: dict[Verdict, str] = {"leaked": "bold red", "growing": "bold yellow", "in use at exit": "bold"}
# A branch of the call tree that holds less is gathered into one line.
_MIN_BRANCH = 0.01
_INDENT = 6


class ViewOptions(Struct, frozen=True, kw_only=True):
    """What a view shows of its rows."""

    by: By = "line"
    limit: int = 10
    """0: all of them."""
    verbose: bool = False

    @property
    def most(self) -> int | None:
        return self.limit or None


# ---- leaks ----


def leaks(view: TraceView, wanted: ViewOptions, options: RenderOptions) -> RenderableType:
    """Return what was never freed, by verdict, each with its reason."""
    blocks: list[RenderableType] = [*head(view, options)]
    if not view.leaks:
        blocks += [Text(), heading("Everything that was allocated was freed again.", options)]
    for verdict in VERDICTS:
        found = leaks_of(view, verdict)
        if found:
            blocks += [Text(), *_verdict(view, verdict, found, wanted, options)]
    blocks += _reminders(view, options)
    return Group(*blocks)


def _verdict(
    view: TraceView, verdict: Verdict, found: list[LeakSite], wanted: ViewOptions, options: RenderOptions
) -> Iterator[RenderableType]:
    title = f"{verdict.capitalize()}: {amounts([leak.site for leak in found])}"
    yield sentence(title, options, style=_STYLES[verdict], indent=0)
    yield sentence(VERDICT_REASONS[verdict], options, style="dim")
    if len({memory_of(leak.site) for leak in found} & {"gpu", "block"}) == 2:
        yield sentence(_INSIDE, options, style="dim")
    gathered = rows(view, (leak.site for leak in found), wanted.by)
    facts = _Facts(found)
    whole = wanted.verbose
    short = verdict == "in use at exit" and not whole
    body = (
        (
            (size(row.nbytes), f"{row.count:,}"),
            row_cell(row, options),
            () if short else _below_leak(view, row, facts, options, whole=whole),
        )
        for row in gathered[: wanted.most]
    )
    yield from table(("size", "count", "allocated by"), body, options)
    yield from _rest(gathered, wanted, options)


class _Facts:
    """When the allocations of a row were made, and how many others of its stacks were freed."""

    def __init__(self, found: list[LeakSite]) -> None:
        self._leaks = {site_key(leak.site): leak for leak in found}

    def sentence(self, row: AllocationRow) -> str:
        leaks = [self._leaks[site_key(site)] for site in row.sites]
        first = min(leak.first_ns for leak in leaks)
        last = max(leak.last_ns for leak in leaks)
        freed = sum(leak.freed for leak in leaks)
        when = f"at {moment(first)}" if first == last else f"from {moment(first)} to {moment(last)}"
        each = f", the largest {size(max(leak.largest for leak in leaks))}" if row.count > 1 else ""
        others = f"; {freed:,} others were freed" if freed else "; none was ever freed"
        return f"{when}{each}{others}"


def _below_leak(
    view: TraceView, row: AllocationRow, facts: _Facts, options: RenderOptions, *, whole: bool
) -> Iterator[Text]:
    for line in wrap(options.clean(facts.sentence(row)), options.measure - _INDENT):
        yield Text(" " * _INDENT + line, style="dim")
    if not whole and row.stacks > 1:
        yield from branch_lines(branches(view, row), _INDENT, options)
    else:
        yield from stack_lines(stack_of(view, row.stack), row.place, _INDENT, options, whole=whole)


def _below(
    view: TraceView, row: AllocationRow, wanted: ViewOptions, options: RenderOptions
) -> Iterator[Text]:
    """The whole stack on request; else who the allocations come from, where there are several."""
    if wanted.verbose:
        yield from stack_lines(stack_of(view, row.stack), row.place, _INDENT, options, whole=True)
    elif row.stacks > 1 and row.place is not None:
        yield from branch_lines(branches(view, row), _INDENT, options)


def _reminders(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    notes = missing(view)
    if notes:
        yield Text()
    for text in notes:
        yield sentence(text, options, mark="- ")


# ---- the peak ----


def peak(view: TraceView, wanted: ViewOptions, options: RenderOptions) -> RenderableType:
    """Return what was live on each GPU at its highest moment."""
    blocks: list[RenderableType] = [*head(view, options)]
    if not view.gpus:
        blocks += [Text(), sentence("Nothing was allocated on a GPU.", options, indent=0)]
    for use, driver in _per_gpu(view):
        title = f"  {size(use.peak_nbytes)} live after {moment(use.peak_ns)}, its highest moment"
        blocks += [Text(), Text.assemble((options.clean(gpu_name(use.gpu)), "bold"), options.clean(title))]
        blocks += [sentence(words, options) for words in framework_sentences(view, use.gpu)]
        used = blocks_at_peak(view, use.gpu)
        for framework in dict.fromkeys(block.framework for block in used):
            sites = [site for block in used if block.framework == framework for site in block.sites]
            title = f"{framework_name(framework)}'s blocks, by"
            blocks += _peak_table(view, sites, title, wanted, options, of_framework=True)
        blocks += _peak_table(
            view, driver, "taken from the driver by" if used else "allocated by", wanted, options
        )
    return Group(*blocks)


def _per_gpu(view: TraceView) -> Iterator[tuple[GpuUse, list[Site]]]:
    driver = on_gpu(view.peak)
    for use in view.gpus:
        yield use, [site for site in driver if site.gpu == use.gpu]


def _peak_table(
    view: TraceView,
    sites: Sequence[Site],
    title: str,
    wanted: ViewOptions,
    options: RenderOptions,
    *,
    of_framework: bool = False,
) -> Iterator[Text]:
    gathered = rows(view, sites, wanted.by)
    whole = gathered.nbytes_from(0)
    body = (
        (
            (size(row.nbytes), f"{100 * row.nbytes / whole:.1f}%" if whole else "", f"{row.count:,}"),
            row_cell(row, options, kinds=not of_framework),
            _below(view, row, wanted, options),
        )
        for row in gathered[: wanted.most]
    )
    yield from table(("size", "share", "count", title), body, options)
    yield from _rest(gathered, wanted, options)


def _rest(gathered: Rows, wanted: ViewOptions, options: RenderOptions) -> list[Text]:
    shown = len(gathered) if wanted.most is None else wanted.most
    return rest_line(len(gathered) - shown, gathered.nbytes_from(shown), options)


# ---- the call tree ----


class _Node:
    __slots__ = ("children", "count", "frame", "nbytes")

    def __init__(self, frame: Frame | None) -> None:
        self.frame = frame
        self.nbytes = self.count = 0
        self.children: dict[Frame, _Node] = {}


def tree(view: TraceView, wanted: ViewOptions, options: RenderOptions) -> RenderableType:
    """Return the call tree of what was live at the peak, outermost calls first."""
    blocks: list[RenderableType] = [*head(view, options)]
    for use in view.gpus:
        title = f"  {size(use.peak_nbytes)} live after {moment(use.peak_ns)}, by calls"
        blocks += [Text(), Text.assemble((options.clean(gpu_name(use.gpu)), "bold"), options.clean(title))]
        blocks += _tree_lines(_call_tree(view, held_at_peak(view, use.gpu)), wanted, options)
    return Group(*blocks)


def _call_tree(view: TraceView, sites: Sequence[Site]) -> _Node:
    root = _Node(None)
    for site in sites:
        node = root
        _add(node, site)
        for frame in reversed(stack_of(view, site.stack).frames):
            node = node.children.setdefault(frame, _Node(frame))
            _add(node, site)
    return root


def _add(node: _Node, site: Site) -> None:
    node.nbytes += site.nbytes
    node.count += site.count


def _tree_lines(root: _Node, wanted: ViewOptions, options: RenderOptions) -> Iterator[Text]:
    """Depth first, without recursion: a hostile stack may be deep."""
    least = 0 if wanted.verbose else int(root.nbytes * _MIN_BRANCH)
    deepest = max(2, (options.width - 50) // 2)
    pending: list[tuple[_Node, int, bool]] = [(child, 0, False) for child in _sorted(root)][::-1]
    printed = 0
    most = 0 if wanted.limit == 0 else max(wanted.limit * 6, 40)
    while pending:
        node, depth, is_chained = pending.pop()
        if node.nbytes < least or (most and printed >= most):
            continue
        printed += 1
        figures = "" if is_chained else f"{size(node.nbytes):>10} {_percent(node, root):>6}"
        lead = f"  {figures:17}  {'  ' * min(depth, deepest)}"
        yield Text.assemble(lead, place_text(node.frame, options.width - cell_len(lead), options))
        children = _sorted(node)
        # Calls in a row, without a branch, stay in one column: else every stack would run off the screen.
        is_chain = len(children) == 1 and children[0].nbytes == node.nbytes
        pending += [(child, depth if is_chain else depth + 1, is_chain) for child in children][::-1]
    unknown = root.nbytes - sum(child.nbytes for child in root.children.values())
    if unknown:
        yield Text(f"  {size(unknown):>10}          no stack was recorded", style="dim")
    if least:
        yield Text(options.clean("  branches below 1% are left out; -v shows all"), style="dim")


def _sorted(node: _Node) -> list[_Node]:
    return sorted(node.children.values(), key=lambda child: -child.nbytes)


def _percent(node: _Node, root: _Node) -> str:
    return f"{100 * node.nbytes / root.nbytes:.1f}%" if root.nbytes else ""


# ---- churn ----


def churn(view: TraceView, wanted: ViewOptions, options: RenderOptions) -> RenderableType:
    """Return the places whose allocations were freed again soon."""
    blocks: list[RenderableType] = [*head(view, options), Text()]
    if not view.churn:
        blocks.append(sentence("No place allocated and freed again and again.", options, indent=0))
        return Group(*blocks)
    about = (
        "Each pair of allocation and free below went to the driver, which costs microseconds to milliseconds"
        " and may wait for the GPU. A cache (a framework's allocator, cudaMallocAsync) would save them."
    )
    blocks += [sentence(about, options, style="dim", indent=0), Text()]
    body = (
        (
            (f"{row.count:,}", _rate(per_second), size(row.nbytes), moment(life_ns)),
            row_cell(row, options),
            _below(view, row, wanted, options),
        )
        for row, life_ns, per_second in churn_rows(view, wanted.by, wanted.most)
    )
    blocks += table(("pairs", "per second", "bytes in all", "median life", "allocated by"), body, options)
    blocks += _rest(rows(view, (each.site for each in view.churn), wanted.by), wanted, options)
    return Group(*blocks)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"


# ---- two traces ----


def diff(before: TraceView, after: TraceView, wanted: ViewOptions, options: RenderOptions) -> RenderableType:
    """Return what the second trace holds more than the first, at the peak and at the end."""
    blocks: list[RenderableType] = []
    for letter, view in (("A", before), ("B", after)):
        name = f"{letter}  {', '.join(view.paths)}"
        blocks.append(Text(path_end(name, options.width, options), style="bold"))
        for use in view.gpus:
            words = f"{gpu_name(use.gpu)}: peak {size(use.peak_nbytes)}, {size(use.end_nbytes)} at the end"
            blocks.append(sentence(words, options, indent=3))
    for title, pick in PICKS.items():
        found = differences(before, after, pick, wanted.by, wanted.most)
        if not (found.rows or pick(before) or pick(after)):
            continue
        blocks += [Text(), *_changes(title, found, options)]
    blocks += [
        Text(),
        sentence(
            "Stacks are compared by function and file: a line that moved is the same.",
            options,
            style="dim",
            indent=0,
        ),
    ]
    return Group(*blocks)


def _changes(title: str, found: Differences, options: RenderOptions) -> Iterator[RenderableType]:
    yield heading(f"{title.capitalize()}: {_signed(found.total)}", options)
    if not found.rows:
        yield sentence("no place changed", options, style="dim")
        return
    body = (
        (
            (_signed(row.change), size(row.before_nbytes), size(row.after_nbytes)),
            place_cell(row.place, options, row.label, row.caller),
            (),
        )
        for row in found.rows
    )
    yield from table(("change", "in A", "in B", "allocated by"), body, options)
    yield from rest_line(found.hidden, found.hidden_nbytes, options)


def _signed(nbytes: int) -> str:
    return ("+" if nbytes > 0 else "") + size(nbytes)

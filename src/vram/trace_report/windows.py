"""Windows of a trace: is it growing, what holds most, what churns; rows of them, and their lines.

A program that trains or serves did its loading long before `vram attach`, or early in a long run. What a
person asks about is the window since then, not the peak.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from vram.model.trace import HeldArrays, TraceView, Window, WindowPlace, stack_of
from vram.report.layout import RenderOptions, paragraph
from vram.trace.places import caller, is_wrapper, place
from vram.trace_report.lines import (
    Cell,
    PlaceLabel,
    ReportOptions,
    head,
    heading,
    missing_lines,
    moment,
    rest_line,
    row_cell,
    sentence,
    table,
)
from vram.trace_report.rows import AllocationRow, By, grouping, row_of
from vram.trace_report.words import Sentence, Tone, framework_name, gpu_name
from vram.units import counted, size

HELD_BEFORE = "held before recording: no lines are known"
UNNAMED = "from before recording: no line, and no name was found"
# PyTorch's backward pass allocates in threads of its own, in which no Python runs.
NO_PYTHON = "no Python line, as in a backward pass"
BEFORE = "before"

_BLOCKS = {"torch": "tensors", "cupy": "arrays", "jax": "buffers"}

_MAX_HELD, _MAX_GROWN, _MAX_CHURN = 4, 3, 3
_MAX_HELD_BESIDE_THE_PEAK, _MAX_GROWN_BESIDE_THE_PEAK, _MAX_CHURN_BESIDE_THE_PEAK = 3, 1, 2


# ---- which windows answer ----


def is_attached(view: TraceView) -> bool:
    """Whether recording began in processes that already ran."""
    return bool(view.processes) and all(process.attached for process in view.processes)


def answers(view: TraceView) -> list[Window]:
    """The windows that say what a person asks: those that began after the peak, or in a running process.

    A framework's blocks stand for the memory that it took from the driver, where they were recorded.
    """
    attached = is_attached(view)
    peaks = {use.gpu: use.peak_ns for use in view.gpus}
    chosen = [window for window in view.windows if attached or window.begin_ns > peaks.get(window.gpu, 0)]
    with_blocks = {window.gpu for window in chosen if window.framework is not None}
    return [window for window in chosen if window.framework is not None or window.gpu not in with_blocks]


def seconds(window: Window) -> float:
    return max((window.end_ns - window.begin_ns) / 1e9, 1e-9)


# ---- rows ----


class PlaceInWindow(Struct, kw_only=True):
    """Places of windows that belong together, by ``by``, or by the name of what has no stack.

    ``row`` has the count and bytes that were live at the highest moment.
    """

    row: AllocationRow
    name: str
    base_count: int
    base_nbytes: int
    end_count: int
    end_nbytes: int
    made: int
    made_nbytes: int
    freed: int
    median_life_ns: int | None
    """Of the place that allocated most."""
    growing: bool
    per_second: float
    nbytes_per_second: float

    @property
    def change(self) -> int:
        return self.end_nbytes - self.base_nbytes


def window_rows(
    view: TraceView, windows: Sequence[Window], by: By, wanted: Callable[[WindowPlace], bool]
) -> list[PlaceInWindow]:
    """The places of *windows* that are *wanted*, gathered."""
    key = _key(view, by)
    gathered: dict[Hashable, list[tuple[Window, WindowPlace]]] = {}
    for window in windows:
        for each in filter(wanted, window.places):
            gathered.setdefault(key(each), []).append((window, each))
    return [_gather(view, pairs, by) for pairs in gathered.values()]


def _key(view: TraceView, by: By) -> Callable[[WindowPlace], Hashable]:
    """Of a place that several lines call, each caller has a row of its own: it says more."""
    group = grouping(view, by)
    callers: dict[int, Hashable] = {}

    def calling(number: int) -> Hashable:
        if by != "line":
            return None
        if number not in callers:
            stack = stack_of(view, number)
            callers[number] = caller(stack) if is_wrapper(view, place(stack)) else None
        return callers[number]

    def key(each: WindowPlace) -> Hashable:
        site = each.site
        return each.name or (group(site.stack), calling(site.stack), bool(each.base_count and not site.stack))

    return key


def _gather(view: TraceView, pairs: list[tuple[Window, WindowPlace]], by: By) -> PlaceInWindow:
    places = [each for _, each in pairs]
    busiest = max(places, key=lambda each: each.made_nbytes)
    return PlaceInWindow(
        row=row_of(view, [each.site for each in places], by),
        name=places[0].name,
        base_count=sum(each.base_count for each in places),
        base_nbytes=sum(each.base_nbytes for each in places),
        end_count=sum(each.end_count for each in places),
        end_nbytes=sum(each.end_nbytes for each in places),
        made=sum(each.made for each in places),
        made_nbytes=sum(each.made_nbytes for each in places),
        freed=sum(each.freed for each in places),
        median_life_ns=busiest.median_life_ns,
        growing=any(each.growing for each in places),
        per_second=sum(each.made / seconds(window) for window, each in pairs),
        nbytes_per_second=sum(each.made_nbytes / seconds(window) for window, each in pairs),
    )


def most_rows(view: TraceView, windows: Sequence[Window], by: By) -> list[PlaceInWindow]:
    """What was live at the highest moment of each window, the largest first."""
    found = window_rows(view, windows, by, lambda each: each.site.count > 0)
    return sorted(found, key=lambda each: -each.row.nbytes)


def changed_rows(view: TraceView, windows: Sequence[Window], by: By) -> list[PlaceInWindow]:
    """What holds more or less at the end than when its window began; what goes on growing first."""
    found = [each for each in window_rows(view, windows, by, lambda each: True) if each.change]
    return sorted(found, key=lambda each: (not each.growing, -each.change))


def growing_rows(view: TraceView, by: By) -> list[PlaceInWindow]:
    """Places that go on growing to the end, of all windows: also the driver's own beside a framework's."""
    found = window_rows(view, view.windows, by, lambda each: each.growing)
    return sorted(found, key=lambda each: -each.change)


def churn_rows(view: TraceView, windows: Sequence[Window], by: By) -> list[PlaceInWindow]:
    """What is allocated and freed again and again, the most bytes first."""
    found = window_rows(view, windows, by, lambda each: each.churns)
    return sorted(found, key=lambda each: -each.made_nbytes)


# ---- words ----


def rate(nbytes_per_second: float) -> str:
    return f"{size(int(nbytes_per_second))}/s"


def trend_sentence(view: TraceView) -> str:
    """Whether it is growing, in one sentence; empty where no window says."""
    windows = answers(view)
    if not windows:
        return ""
    longest = max(windows, key=seconds)
    when = f"in {moment(longest.end_ns - longest.begin_ns)}"
    grown = sum(each.change for each in growing_rows(view, "stack"))
    if grown > 0:
        return f"Growing: {size(grown)} more {when}, {rate(grown / seconds(longest))}"
    for name in ("growing", "shrinking"):
        found = [each for each in windows if each.trend == name]
        if found:
            change = abs(sum(each.lowest[-1] - each.lowest[0] for each in found))
            sign = "more" if name == "growing" else "less"
            return f"{name.capitalize()}: at its lowest {size(change)} {sign} {when}, step by step"
    return f"Steady: no place went on growing {when}"


def level_sentence(window: Window, *, attached: bool) -> str:
    """How high it was in a window."""
    begin = "when recording began" if attached else f"after {moment(window.begin_ns)}"
    if window.framework is None:
        before = window.before_nbytes
        if not attached:
            return (
                f"since {moment(window.begin_ns)}: {size(window.base_nbytes)} then, highest"
                f" {size(window.highest_nbytes)} after {moment(window.highest_ns)}"
            )
        held = "unknown how much" if before is None else size(before)
        if not window.highest_nbytes:
            return f"held before recording: {held}; nothing was allocated since"
        return (
            f"held before recording: {held}; since then at most {size(window.highest_nbytes)} more, after"
            f" {moment(window.highest_ns)}, {size(window.end_nbytes)} at the end"
        )
    what = _BLOCKS.get(window.framework, "blocks")
    base = "" if window.process is None else f"{size(window.base_nbytes)} in {what} {begin}, "
    return (
        f"{framework_name(window.framework)}: {base}highest {size(window.highest_nbytes)} after"
        f" {moment(window.highest_ns)}, {size(window.end_nbytes)} at the end"
    )


def page_sentences(view: TraceView) -> list[Sentence]:
    """What the windows that answer say, for the beginning of the page."""
    attached, found = is_attached(view), answers(view)
    words = trend_sentence(view)
    shown = view.windows if attached else found
    tone: Tone = "warning" if words.startswith("Growing") else "plain"
    levels = (f"{gpu_name(each.gpu)}, {level_sentence(each, attached=attached)}." for each in shown)
    return [
        *([Sentence(tone, f"{words}.")] if words else ()),
        *(Sentence("plain", level[0].upper() + level[1:]) for level in levels),
    ]


# ---- lines ----


def gpu_line(gpu: int | None, words: str, options: RenderOptions, *, named: bool = True) -> RenderableType:
    """A GPU and a sentence beside it; its name gives way to spaces where it stands above."""
    name = gpu_name(gpu)
    lead = name if named else " " * len(name)
    style = "bold" if named else "dim"
    return paragraph(f"{options.clean(lead)}  ", Text(options.clean(words)), options, style=style)


def row_label(each: PlaceInWindow, options: RenderOptions, note: str = "") -> Cell:
    """A row's place; its name, where it is from before recording and has no place."""
    if each.row.place is not None or each.row.stack:
        return row_cell(each.row, options, note, kinds=False)
    if each.name:
        return PlaceLabel(None, each.name).cell(options, note or BEFORE)
    if each.made:
        return PlaceLabel(None, NO_PYTHON).cell(options, note)
    return PlaceLabel(None, UNNAMED).cell(options, note)


def _on(view: TraceView, row: AllocationRow) -> str:
    if len(view.gpus) < 2:
        return ""
    return ", ".join(map(gpu_name, row.gpus)) if len(row.gpus) < 3 else f"{len(row.gpus)} GPUs"


def summary_lines(view: TraceView, options: RenderOptions) -> Iterator[RenderableType]:
    """The answers of a steady program for the one screen: growing, most, churn."""
    windows = answers(view)
    if not windows:
        return
    attached = is_attached(view)
    most, grew, churns = (
        (_MAX_HELD, _MAX_GROWN, _MAX_CHURN)
        if attached
        else (_MAX_HELD_BESIDE_THE_PEAK, _MAX_GROWN_BESIDE_THE_PEAK, _MAX_CHURN_BESIDE_THE_PEAK)
    )
    yield Text()
    words = trend_sentence(view)
    is_growing = words.startswith("Growing")
    yield heading(words, options, style="bold yellow" if is_growing else "bold")
    if is_growing:
        found = growing_rows(view, "line") or changed_rows(view, windows, "line")
        yield from _growth(view, [each for each in found if each.change > 0][:grew], options)
    yield from most_lines(view, windows, most, options)
    yield from _held(view, windows, options)
    yield from _churn(view, windows, churns, options)


def _growth(view: TraceView, found: Sequence[PlaceInWindow], options: RenderOptions) -> Iterator[Text]:
    for each in found:
        new = counted(each.made, "allocation")
        freed = f", {each.freed:,} freed" if each.freed else ", none freed"
        lead = f"  +{size(each.change)} by {new}{freed}  "
        cell = row_label(each, options, _on(view, each.row))
        yield Text.assemble((lead, "yellow"), cell(max(20, options.width - len(lead))))


def most_lines(
    view: TraceView, windows: Sequence[Window], limit: int | None, options: RenderOptions, by: By = "line"
) -> Iterator[RenderableType]:
    found = most_rows(view, windows, by)
    before = sum(window.before_nbytes or 0 for window in windows)
    if not found and not before:
        return
    whole = before + sum(window.highest_nbytes for window in windows)
    yield Text()
    since = "" if is_attached(view) else f" since {moment(min(each.begin_ns for each in windows))}"
    yield heading(f"Most at the highest moment{since}", options)

    def figures(nbytes: int, count: int | None) -> tuple[str, str, str]:
        return size(nbytes), f"{100 * nbytes / max(1, whole):.0f}%", "" if count is None else f"{count:,}"

    body: list[tuple[Sequence[str], Cell, Sequence[Text]]] = [
        (figures(each.row.nbytes, each.row.count), row_label(each, options, _on(view, each.row)), ())
        for each in found[:limit]
    ]
    if before:  # the driver's own memory, of which only the sum is known
        body.insert(0, (figures(before, None), PlaceLabel(None, HELD_BEFORE).cell(options), ()))
    yield from table(("size", "share", "count", "allocated by, or held as"), body, options)
    yield from _rest(found, limit, lambda each: each.row.nbytes, options)


def _rest(
    found: Sequence[PlaceInWindow],
    limit: int | None,
    nbytes: Callable[[PlaceInWindow], int],
    options: RenderOptions,
) -> Iterator[Text]:
    hidden = [] if limit is None else found[limit:]
    yield from rest_line(len(hidden), sum(map(nbytes, hidden)), options, more="`vram report window`")


def held_rows(view: TraceView, windows: Sequence[Window]) -> list[HeldArrays]:
    """Arrays from before recording that no window has: those of the driver's own and of CuPy's."""
    shown = {(window.process, window.gpu) for window in windows}
    return [each for each in view.held if (each.process, each.gpu) not in shown]


def _held(
    view: TraceView, windows: Sequence[Window], options: RenderOptions, limit: int | None = _MAX_HELD
) -> Iterator[RenderableType]:
    found = held_rows(view, windows)
    if not found:
        return
    yield Text()
    yield heading("Held when recording began, by name", options)
    body = (
        (
            (size(each.nbytes), f"{each.count:,}"),
            PlaceLabel(None, each.name).cell(options, each.framework),
            (),
        )
        for each in found[:limit]
    )
    yield from table(("size", "count", "held as"), body, options)
    if limit is not None and len(found) > limit:
        rest = sum(each.nbytes for each in found[limit:])
        yield from rest_line(len(found) - limit, rest, options, noun="name", more="`vram report window`")


def _churn(
    view: TraceView, windows: Sequence[Window], limit: int | None, options: RenderOptions, by: By = "line"
) -> Iterator[RenderableType]:
    found = churn_rows(view, windows, by)
    yield Text()
    if not found:
        yield heading("Allocated and freed again and again: nothing", options)
        return
    yield heading("Allocated and freed again and again", options)
    body = (
        (
            (rate(each.nbytes_per_second), f"{each.per_second:,.0f}/s", f"{each.made:,}"),
            row_label(each, options, _on(view, each.row)),
            (),
        )
        for each in found[:limit]
    )
    yield from table(("bytes", "times", "count", "allocated by"), body, options)
    yield from _rest(found, limit, lambda each: each.made_nbytes, options)


# ---- the view ----


def window(view: TraceView, options: ReportOptions) -> RenderableType:
    """Return what every window says: its levels, what held most, what changed, what churns."""
    screen, by, limit = options.screen, options.by, options.most
    blocks: list[RenderableType] = [*head(view, screen)]
    windows = answers(view) or [each for each in view.windows if each.framework is None]
    if not windows:
        blocks += [Text(), sentence("Nothing was allocated on a GPU.", screen, indent=0)]
    attached = is_attached(view)
    words = trend_sentence(view)
    if words:
        blocks += [Text(), heading(words, screen)]
    for each in windows:
        levels = level_sentence(each, attached=attached)
        blocks += [Text(), gpu_line(each.gpu, levels, screen)]
        blocks += most_lines(view, [each], limit, screen, by)
        blocks += _changes(view, each, limit, screen, by)
        blocks += _churn(view, [each], limit, screen, by)
    blocks += _held(view, windows, screen, limit)
    blocks += missing_lines(view, screen)
    return Group(*blocks)


def _changes(
    view: TraceView, each: Window, limit: int | None, options: RenderOptions, by: By
) -> Iterator[RenderableType]:
    found = changed_rows(view, [each], by)
    if not found:
        return
    yield Text()
    yield heading("More or less at the end than at the beginning", options)
    body = (
        (
            (
                ("+" if row.change > 0 else "") + size(row.change),
                f"{row.made:,}",
                f"{row.freed:,}",
                "growing" if row.growing else "",
            ),
            row_label(row, options),
            (),
        )
        for row in found[:limit]
    )
    yield from table(("change", "made", "freed", "", "allocated by, or held as"), body, options)
    yield from _rest(found, limit, lambda row: row.change, options)

"""The list of processes: one line each, redrawn only where it has changed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar

from msgspec.structs import replace
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from vram.report.layout import RenderOptions
from vram.report.process_rows import ProcessRow
from vram.report.process_table import COLUMNS, USUAL, Column, process_lines
from vram.top.panels import DrawnWidget, TextPanel, is_same
from vram.top.view import ViewLine

TREND_HEADING = "10 MIN"
# Whether it works at all is what people want to know before they end it.
_COLUMNS = (*USUAL[: USUAL.index("state")], "cpu", *USUAL[USUAL.index("state") :])
# A trend beside each line where the terminal is this wide, and how wide it is then.
_TREND_FROM = 110
_TREND_WIDTH = 12
_TREND = Style(dim=True)
_SELECTED, _SELECTED_BOLD = Style(reverse=True), Style(reverse=True, bold=True)


def trend_width(width: int) -> int:
    """How many cells of a line show memory over time."""
    return _TREND_WIDTH if width >= _TREND_FROM else 0


def formatted(
    lines: Sequence[ViewLine], elapsed_s: float, cpu_percent: Mapping[int, int], options: RenderOptions
) -> tuple[Text, list[Text]]:
    """Return the headings and a text for each of *lines*, with ages *elapsed_s* after they were read.

    *cpu_percent* is by pid; of a process that is not in it nothing is known yet.
    """

    def cpu(row: ProcessRow) -> str:
        known = [cpu_percent[pid] for pid, _ in row.identities if pid in cpu_percent]
        return "-" if not known or row.state == "windows" else str(sum(known))

    shown = [_with_age(line.row, elapsed_s) for line in lines if line.row is not None]
    more = {"cpu": Column("%CPU", cpu, right=True)}
    heading, *texts = process_lines(shown, options, columns=_COLUMNS, more=more)
    waiting = iter(texts)
    indent = heading.plain.find(COLUMNS["command"].heading)
    return heading, [
        next(waiting) if line.row is not None else _heading(line, indent, options) for line in lines
    ]


def _heading(line: ViewLine, indent: int, options: RenderOptions) -> Text:
    if line.in_tree:
        return Text.assemble(" " * indent, (options.short(line.heading, options.width - indent), "dim"))
    return Text.assemble((options.short(line.heading, options.width), "bold"))


def _with_age(row: ProcessRow, elapsed_s: float) -> ProcessRow:
    return row if row.age_s is None or not elapsed_s else replace(row, age_s=row.age_s + elapsed_s)


def _style_selected(style: Style | None) -> Style:
    return _SELECTED_BOLD if style is not None and style.bold else _SELECTED


def column_at(heading: str, x: int) -> str | None:
    """The column whose heading, or what stands below it, is at cell *x*."""
    found = None
    for name in USUAL:
        column = COLUMNS[name]
        start = heading.find(column.heading)
        if column.right:
            if x < start + len(column.heading):
                return name
        elif x >= start:
            found = name
            if x < start + len(column.heading):
                return name
    return found


class TableHeader(TextPanel):
    """The headings; a click sorts by a column, another one turns the order round."""

    class Clicked(Message):
        """A heading was clicked."""

        def __init__(self, column: str) -> None:
            self.column = column
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self._heading = ""

    def set_heading(self, heading: Text, sort: str, reverse: bool, trend: int) -> None:
        """Show *heading* with the column marked that lines are sorted by, and the trend's own beside it."""
        shown = Text.assemble((heading.plain, "dim"))
        if sort in COLUMNS:
            word = COLUMNS[sort].heading
            at = heading.plain.find(word)
            shown.stylize(Style(bold=True, dim=False, underline=True, reverse=reverse), at, at + len(word))
        if trend:
            shown.pad_right(max(0, self.size.width - trend - shown.cell_len))
            shown.append(TREND_HEADING.rjust(trend), style="dim")
        self._heading = heading.plain
        self.set_lines([shown])

    def on_click(self, event: events.Click) -> None:
        column = column_at(self._heading, event.x)
        if column is not None:
            self.post_message(self.Clicked(column))


class ProcessTable(DrawnWidget, ScrollView, can_focus=True):
    """Lines of text with a cursor. ``selected`` is the key of the line under it."""

    DEFAULT_CSS = "ProcessTable { height: 1fr; overflow-x: hidden; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "up", show=False),
        Binding("down", "move(1)", "down", show=False),
        Binding("pageup", "page(-1)", "page up", show=False),
        Binding("pagedown", "page(1)", "page down", show=False),
        Binding("home", "edge(-1)", "first", show=False),
        Binding("end", "edge(1)", "last", show=False),
    ]

    class Moved(Message):
        """The cursor is on another line."""

    class Opened(Message):
        """A line was double-clicked."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: list[Hashable] = []
        self._texts: list[Text] = []
        self._trends: list[str] = []
        self._strips: dict[int, Strip] = {}
        self._cursor = 0
        self._is_placed = False
        self.redrawn = 0
        """How many lines were redrawn, for tests."""

    @property
    def selected(self) -> Hashable | None:
        return self._keys[self._cursor] if self._keys else None

    @property
    def shown(self) -> list[str]:
        """The lines as they are on the screen, without the trends."""
        return [text.plain for text in self._texts]

    def set_lines(self, keys: list[Hashable], texts: list[Text], trends: list[str], first: int = 0) -> None:
        """Show other lines. The cursor stays on its process; where that is gone, in its place.

        As long as the user has not moved it, it is on the *first* process: trouble that appears is selected.
        """
        selected, before = self.selected, self._cursor
        count = len(self._keys)
        changed = [
            at
            for at in range(len(keys))
            if at >= count or trends[at] != self._trends[at] or not is_same(texts[at], self._texts[at])
        ]
        self._keys, self._texts, self._trends = keys, texts, trends
        if not self._is_placed:
            self._cursor = min(first, max(0, len(keys) - 1))
        elif selected in keys:
            self._cursor = keys.index(selected)
        else:
            self._cursor = min(before, max(0, len(keys) - 1))
        if len(keys) != count:
            self.virtual_size = Size(self.size.width, len(keys))
            self._strips.clear()
            self.refresh()
            self.redrawn += len(keys)
        else:
            moved = {before, self._cursor} if before != self._cursor else set()
            for at in sorted({*changed, *moved}):
                self._redraw(at)
        if self.selected != selected:
            self.post_message(self.Moved())

    def _redraw(self, at: int) -> None:
        self._strips.pop(at, None)
        self.redrawn += 1
        self.refresh_line(at)

    def select(self, key: Hashable) -> None:
        """Move the cursor to the line with *key*, if there is one."""
        if key in self._keys:
            self._move_to(self._keys.index(key))

    def _move_to(self, at: int) -> None:
        at = max(0, min(at, len(self._keys) - 1))
        self._is_placed = True
        if not self._keys or at == self._cursor:
            return
        before, self._cursor = self._cursor, at
        self._redraw(before)
        self._redraw(at)
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if at < top:
            self.scroll_to(y=at, animate=False, immediate=True)
        elif at >= top + height:
            self.scroll_to(y=at - height + 1, animate=False, immediate=True)
        self.post_message(self.Moved())

    def action_move(self, by: int) -> None:
        self._move_to(self._cursor + by)

    def action_page(self, by: int) -> None:
        self._move_to(self._cursor + by * max(1, self.size.height - 1))

    def action_edge(self, by: int) -> None:
        self._move_to(0 if by < 0 else len(self._keys) - 1)
        self._is_placed = by > 0  # at the top it stays at the top

    def on_click(self, event: events.Click) -> None:
        at = event.y + self.scroll_offset.y
        if at < len(self._keys):
            self._move_to(at)
            if event.chain == 2:
                self.post_message(self.Opened())

    def on_resize(self) -> None:
        self._strips.clear()
        self.virtual_size = Size(self.size.width, len(self._keys))

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        at, width = y + self.scroll_offset.y, self.size.width
        if at >= len(self._texts):
            return Strip.blank(width, self.behind)
        strip = self._strips.get(at)
        if strip is None or strip.cell_length != width:
            strip = self._strips[at] = self._strip(at, width)
        return strip

    def _strip(self, at: int, width: int) -> Strip:
        style = self.behind
        trend = self._trends[at]
        room = width - len(trend) - 1 if trend else width
        text = self._texts[at]
        strip = Strip(text.render(self.app.console), text.cell_len).adjust_cell_length(room)
        if at == self._cursor:  # in one colour: a reversed one would stand out more than the line
            strip = Strip([Segment(each.text, _style_selected(each.style)) for each in strip], room)
        if trend:
            strip = Strip([*strip, Segment(" "), Segment(trend, _TREND)], width)
        return strip.apply_style(style)

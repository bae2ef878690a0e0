"""What stands around the list: the line of facts, the GPUs, memory over time, and details of one line."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Sequence

from rich.console import Group, RenderableType
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from vram.model.ledger import Ledger
from vram.report.layout import RenderOptions
from vram.report.screen import GpuBar, gpu_bars, gpu_lines

# ---- memory over time: bounded series for GPUs and processes ----

SPAN_S = 600.0
MAX_POINTS = 240
_GLYPHS = "▁▂▃▄▅▆▇█"
_ASCII_GLYPHS = "_.:-=+*#"


class History:
    """The last ten minutes of every series. A point is the most that was in use during its time.

    Points are a few seconds apart: a shorter interval of readings adds no points, so that what is
    remembered stays the same size however long and however often the host is read.
    """

    def __init__(self, every_s: float, span_s: float = SPAN_S) -> None:
        self.step_s = max(every_s, span_s / MAX_POINTS)
        self._most = max(2, int(span_s / self.step_s))
        self._series: dict[Hashable, array[int]] = {}
        self._began: float | None = None

    def add(self, now: float, figures: dict[Hashable, int]) -> bool:
        """Note *figures* at the time *now*; series that are not among them have ended and are dropped.

        Says whether a new point has begun.
        """
        fresh = self._began is None or now - self._began >= self.step_s
        if fresh:
            self._began = now
        for key in self._series.keys() - figures.keys():
            del self._series[key]
        for key, nbytes in figures.items():
            points = self._series.get(key)
            if points is None:
                self._series[key] = array("q", (nbytes,))
            elif fresh:
                points.append(nbytes)
                if len(points) > self._most:
                    del points[0]
            elif nbytes > points[-1]:
                points[-1] = nbytes
        return fresh

    def points(self, key: Hashable) -> Sequence[int]:
        return self._series.get(key, ())

    def keys(self) -> Collection[Hashable]:
        return self._series.keys()


def sparkline(points: Sequence[int], width: int, top: int, *, ascii_only: bool = False) -> str:
    """Draw the last *points* in *width* cells, the newest on the right; *top* is a full cell."""
    glyphs = _ASCII_GLYPHS if ascii_only else _GLYPHS
    shown = points[-width:] if width > 0 else ()
    cells = "".join(_cell(each, top, glyphs) for each in shown)
    return cells.rjust(max(0, width))


def trend(points: Sequence[int], width: int, *, ascii_only: bool = False) -> str:
    """Draw *points* so that their most is three quarters of a cell: what is constant is no full block."""
    return sparkline(points, width, max(points, default=0) * 4 // 3, ascii_only=ascii_only)


def _cell(nbytes: int, top: int, glyphs: str) -> str:
    if nbytes <= 0 or top <= 0:
        return glyphs[0] if nbytes == 0 else " "
    return glyphs[min(len(glyphs) - 1, nbytes * len(glyphs) // (top + 1))]


# So many GPUs have a line each, with their memory over time; more stand side by side.
_MAX_WITH_TREND = 4


class DrawnWidget(Widget):
    """A widget that draws its lines itself; the style behind them is looked up once, not for every line."""

    _behind: Style | None = None

    @property
    def behind(self) -> Style:
        if self._behind is None:
            self._behind = self.rich_style
        return self._behind

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._behind = None


class TextPanel(DrawnWidget):
    """Lines of text; only those are redrawn that differ from what was there before.

    They are drawn as they are: Textual's own text widgets lay everything out again for each change.
    """

    DEFAULT_CSS = "TextPanel { height: auto; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Text] = []

    @property
    def text(self) -> str:
        return "\n".join(line.plain for line in self._lines)

    def set_lines(self, lines: Sequence[Text]) -> None:
        before, self._lines = self._lines, list(lines)
        if len(before) != len(self._lines):
            self.refresh(layout=True)
            return
        for at, (old, new) in enumerate(zip(before, self._lines, strict=True)):
            if not is_same(old, new):
                self.refresh(Region(0, at, self.size.width, 1))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.behind)
        line = self._lines[y]
        strip = Strip(line.render(self.app.console), line.cell_len).adjust_cell_length(width)
        return strip.apply_style(self.behind)


def is_same(one: Text, other: Text) -> bool:
    """Whether two texts look the same; rich compares the characters alone."""
    return one.plain == other.plain and one.spans == other.spans and one.style == other.style


class KeyBar(Widget):
    """The keys at the bottom; a click on one is the same as the key."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    class Chosen(Message):
        """A key was clicked."""

        def __init__(self, key: str) -> None:
            self.key = key
            super().__init__()

    def __init__(
        self,
        keys: Sequence[tuple[str, str, str]],
        left_out_first: Sequence[str] = (),
        *,
        id: str | None = None,
    ) -> None:
        """*left_out_first* are names of keys that a narrow line does not show, the least important first."""
        super().__init__(id=id)
        self._keys, self._left_out_first = keys, left_out_first
        self._ends: list[tuple[int, str]] = []

    def render(self) -> Text:
        """As many as fit, as far apart as they fit."""
        shown = list(self._keys)
        for name in self._left_out_first:
            if _keys_width(shown, 1) > self.size.width:
                shown = [each for each in shown if each[2] != name]
        gap = " " * (2 if _keys_width(shown, 2) <= self.size.width else 1)
        text = Text(no_wrap=True)
        self._ends = []
        for key, word, name in shown:
            text.append(key, style="reverse").append(f" {word}{gap}")
            self._ends.append((text.cell_len, name))
        return text

    def on_click(self, event: events.Click) -> None:
        for end, name in self._ends:
            if event.x < end:
                self.post_message(self.Chosen(name))
                return


def _keys_width(keys: Sequence[tuple[str, str, str]], gap: int) -> int:
    return sum(len(key) + 1 + len(word) + gap for key, word, _ in keys)


class GpuPanel(VerticalScroll, can_focus=False):
    """A bar for each GPU, and its memory over time where there is room for it."""

    DEFAULT_CSS = "GpuPanel { height: auto; max-height: 33%; }"

    def compose(self) -> ComposeResult:
        yield TextPanel(id="gpu-bars")

    def show(
        self, ledger: Ledger, history: History, options: RenderOptions, forecasts: Sequence[str] = ()
    ) -> None:
        """*forecasts* say which GPUs will be full; they stand below the bars."""
        full = [Text(options.short(each, options.width), style="yellow", no_wrap=True) for each in forecasts]
        self.query_one("#gpu-bars", TextPanel).set_lines([*gpu_texts(ledger, history, options), *full])


def gpu_texts(ledger: Ledger, history: History, options: RenderOptions) -> list[Text]:
    """The bars of *ledger*; with few GPUs, each with its memory over the last minutes."""
    rates = {gpu.index: gpu.facts.utilization for gpu in ledger.gpus if gpu.facts is not None}
    bars = [_with_utilization(bar, rates.get(bar.gpu)) for bar in gpu_bars(ledger)]
    if not bars:
        return [Text.assemble(("No GPU was found.", "bold"))]
    if len(bars) > _MAX_WITH_TREND or len(bars) != len(ledger.gpus):
        return gpu_lines(bars, options)
    room = min(60, options.width // 4)
    narrow = options._replace(width=options.width - room - 2)
    lines = gpu_lines(bars, narrow, side_by_side=False)
    for line, gpu in zip(lines, ledger.gpus, strict=False):  # the legend has no trend
        points = history.points(("gpu", gpu.index))
        trend = sparkline(points, room, gpu.total_bytes or 0, ascii_only=options.ascii)
        line.pad_right(max(0, narrow.width - line.cell_len))
        line.append("  ").append(trend, style="dim")
    return lines


def _with_utilization(bar: GpuBar, percent: int | None) -> GpuBar:
    """The bar with how busy its GPU is: memory alone does not say whether a program works with it."""
    return bar._replace(figures=f"{bar.figures} UTIL {'-' if percent is None else f'{percent}%':>4}")


class DetailsPanel(DrawnWidget, ScrollView, can_focus=True):
    """Everything about the selected process; scrolls. Laid out once for each change, not for each screen."""

    DEFAULT_CSS = """
    DetailsPanel { display: none; height: 50%; border-top: solid $primary; padding: 0 1; overflow-x: hidden; }
    DetailsPanel.ascii { border-top: ascii $primary; }
    DetailsPanel.open { display: block; }
    """

    def __init__(self, *, classes: str = "") -> None:
        super().__init__(classes=classes)
        self._strips: list[Strip] = []

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def toggle(self, table: Widget) -> None:
        """Open it, or close it and hand the focus to *table*."""
        self.toggle_class("open")
        if not self.is_open:
            table.focus()

    def switch_focus(self, table: Widget) -> None:
        """Move the focus into it where it is open, and back to *table*."""
        (self if self.is_open and not self.has_focus else table).focus()

    @property
    def text(self) -> str:
        return "\n".join(strip.text.rstrip() for strip in self._strips)

    def show(self, parts: Sequence[RenderableType], width: int, *, from_top: bool) -> None:
        """Show *parts*, laid out for *width* cells; *from_top*: they are about another process."""
        console = self.app.console
        options = console.options.update(width=width, height=None, highlight=False, markup=False)
        found = console.render_lines(Group(*parts), options, pad=False)
        strips = [Strip(segments) for segments in found]
        if len(strips) != len(self._strips):
            self.virtual_size = Size(width, len(strips))
        self._strips = strips
        if from_top:
            self.scroll_to(y=0, animate=False, immediate=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, width = y + self.scroll_offset.y, self.size.width
        if at >= len(self._strips):
            return Strip.blank(width, self.behind)
        return self._strips[at].adjust_cell_length(width).apply_style(self.behind)

"""What stands around the list: the line of facts on top, the GPUs, and the details of one process."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from vram.model.ledger import Ledger
from vram.report.layout import RenderOptions
from vram.report.screen import gpu_bars, gpu_lines
from vram.top.history import History, sparkline

# The GPUs never take more than this part of the screen; what is more can be scrolled to.
_MOST_OF_SCREEN = 3


class TextPanel(Widget):
    """Lines that are redrawn only where they differ from those before."""

    DEFAULT_CSS = "TextPanel { height: auto; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._text = Text()

    @property
    def text(self) -> str:
        return self._text.plain

    def set_text(self, text: Text) -> None:
        if text == self._text and text.spans == self._text.spans:
            return
        taller = text.plain.count("\n") != self._text.plain.count("\n") or not self._text
        self._text = text
        self.refresh(layout=taller)

    def render(self) -> Text:
        return self._text


class KeyBar(Widget):
    """The keys at the bottom; a click on one is the same as the key."""

    DEFAULT_CSS = "KeyBar { height: 1; }"

    class Chosen(Message):
        """A key was clicked."""

        def __init__(self, key: str) -> None:
            self.key = key
            super().__init__()

    def __init__(self, keys: Sequence[tuple[str, str, str]], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._ends: list[tuple[int, str]] = []
        self._text = Text(no_wrap=True)
        for key, word, name in keys:
            self._text.append(key, style="reverse").append(f" {word}  ")
            self._ends.append((self._text.cell_len, name))

    def render(self) -> Text:
        return self._text

    def on_click(self, event: events.Click) -> None:
        for end, name in self._ends:
            if event.x < end:
                self.post_message(self.Chosen(name))
                return


class GpuPanel(VerticalScroll, can_focus=False):
    """A bar for each GPU, and its memory over time where there is room for it."""

    DEFAULT_CSS = "GpuPanel { height: auto; max-height: 33%; }"

    def compose(self) -> ComposeResult:
        yield TextPanel(id="gpu-bars")

    def show(self, ledger: Ledger, history: History, options: RenderOptions) -> None:
        self.query_one("#gpu-bars", TextPanel).set_text(gpu_text(ledger, history, options))


def gpu_text(ledger: Ledger, history: History, options: RenderOptions) -> Text:
    """The bars of *ledger*; with few GPUs, each with its memory over the last minutes."""
    bars = gpu_bars(ledger)
    if not bars:
        return Text("No GPU was found.", style="bold")
    wide = options.width >= 100 and len(bars) == len(ledger.gpus)
    if not wide or len(bars) > 4:
        return Text("\n").join(gpu_lines(bars, options))
    room = min(60, options.width // 3)
    narrow = options._replace(width=min(options.width - room - 2, 75))  # one bar a line
    lines = []
    for bar, gpu in zip(bars, ledger.gpus, strict=True):
        (line,) = gpu_lines([bar], narrow)
        points = history.points(("gpu", gpu.index))
        trend = sparkline(points, room, gpu.total_bytes or 0, ascii_only=options.ascii)
        lines.append(line.append("  ").append(trend.rstrip() if not trend.strip() else trend, style="dim"))
    return Text("\n").join(lines)


class DetailsPanel(VerticalScroll, can_focus=True):
    """Everything about the selected process; scrolls."""

    DEFAULT_CSS = """
    DetailsPanel { display: none; height: 50%; border-top: solid $primary; padding: 0 1; }
    DetailsPanel.ascii { border-top: ascii $primary; }
    DetailsPanel.open { display: block; }
    """

    def compose(self) -> ComposeResult:
        yield Static(id="details-text", markup=False)

    @property
    def is_open(self) -> bool:
        return self.has_class("open")

    def show(self, parts: Sequence[RenderableType]) -> None:
        self.query_one("#details-text", Static).update(Group(*parts))

"""Questions and answers in front of the view: a plan, its receipt, an error, and the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from vram.errors import VramError
from vram.model.hold import STATES
from vram.report.layout import RenderOptions, paragraph

_CSS = """
.dialog { width: 90%; max-width: 112; height: auto; border: round $primary; padding: 0 1;
          background: $surface; }
.dialog.ascii { border: ascii $primary; }
.dialog VerticalScroll { height: auto; max-height: 80vh; }
.dialog Horizontal { height: auto; align-horizontal: right; margin-top: 1; }
.dialog Horizontal Static { width: auto; }
.dialog Button { height: 1; min-width: 11; border: none; margin-left: 2; }
.dialog Button:focus { text-style: reverse bold; }
"""


class Dialog(ModalScreen[bool]):
    """A box with text that scrolls, and its buttons."""

    DEFAULT_CSS = "Dialog { align: center middle; }" + _CSS

    def __init__(self, title: str, parts: Sequence[RenderableType], *, ascii_only: bool) -> None:
        super().__init__()
        self._title = title
        self._parts = list(parts)
        self._ascii_only = ascii_only

    def compose(self) -> ComposeResult:
        box = Vertical(classes="dialog ascii" if self._ascii_only else "dialog")
        box.border_title = self._title  # ours alone: the word of an action and a number
        with box:
            with VerticalScroll():
                yield Static(self._text(), id="dialog-text", markup=False)
            with Horizontal():
                yield from self.buttons()

    def buttons(self) -> ComposeResult:
        yield Button("Close", id="close", compact=True)

    def _text(self) -> Group:
        return Group(*self._parts)

    def add(self, part: RenderableType) -> None:
        """Show another line below the others."""
        self._parts.append(part)
        self.query_one("#dialog-text", Static).update(self._text())

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")


class Question(Dialog):
    """A plan, and whether to run it. Only a yes is one: Enter alone answers no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
        Binding("left,right", "switch", show=False),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]

    def buttons(self) -> ComposeResult:
        yield Static("Proceed?", classes="question", markup=False)
        yield Button("No (n)", id="no", compact=True)
        yield Button("Yes (y)", id="yes", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no", Button).focus()

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)

    def action_switch(self) -> None:
        self.focus_next("Button")

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)


class Notice(Dialog):
    """Something to read: a receipt, an error, the help."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,question_mark", "close", "close")]

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()

    def action_close(self) -> None:
        self.dismiss(False)


class Running(Dialog):
    """An action that is under way: lines appear as its steps are done. It cannot be closed before its end."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "close", "close")]
    finished = False

    def buttons(self) -> ComposeResult:
        yield Button("Close", id="close", compact=True, disabled=True)

    def finish(self, part: RenderableType) -> None:
        self.add(part)
        self.finished = True
        button = self.query_one("#close", Button)
        button.disabled = False
        button.focus()

    def action_close(self) -> None:
        if self.finished:
            self.dismiss(False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.action_close()

    def on_key(self, event: events.Key) -> None:
        if not self.finished:
            event.stop()


def error_text(error: VramError, options: RenderOptions) -> RenderableType:
    """What was refused and what to do, made safe to show."""
    blocks: list[RenderableType] = [paragraph("", Text(options.clean(str(error)), style="bold"), options)]
    if error.hint:
        blocks.append(paragraph("hint: ", error.hint, options))
    return Group(*blocks)


# ---- the keys, for the line at the bottom and for the page behind `?` ----


KEYS = (
    ("?", "help", "question_mark"),
    ("q", "quit", "q"),
    ("/", "search", "slash"),
    ("t", "tree", "t"),
    ("d", "details", "d"),
    ("f", "free", "f"),
    ("R", "release", "R"),
    ("m", "trim", "m"),
    ("p", "park", "p"),
    ("u", "undo", "u"),
    ("k", "kill", "k"),
)
"""What the bottom line shows: the key, its word, and Textual's name for it."""

LEFT_OUT_FIRST = ("t", "d", "slash")
"""Those that a narrow bottom line leaves out, in this order: the page behind `?` has them all."""

_PAGE = (
    ("Move", (("arrows", "choose a line; page up and down, home and end, and the mouse do too"),)),
    (
        "See",
        (
            ("d, enter", "details of the line: evidence, cause, family, history, remedies"),
            ("tab", "to the details and back, to scroll them"),
            ("t", "a tree by container, job and family, or the table"),
            ("< >", "sort by another column; a click on a heading does too"),
            ("r", "reverse the order"),
            ("/", "search; only lines with all the words stay"),
            ("U  G  S", "only this line's user, GPU or state; again: all"),
            ("esc", "clear search and filters"),
            ("space", "read everything now"),
            ("a", "memory by the line that allocated it, of a process that is being recorded"),
        ),
    ),
    (
        "Act on the line: each shows its plan and asks",
        (
            ("f", "free: all holders of a ghost are terminated, or caches released"),
            ("R", "release: a server (vLLM, ollama and others) is asked for its memory, and keeps running"),
            ("m", "trim: a Python process releases what it only caches, and continues"),
            ("p", "park: pause it and move its memory to host memory"),
            ("u", "undo: unpark it, or let a server take again what it released"),
            ("k", "kill: SIGTERM, 10 s, SIGKILL; on an orphan's line, its whole job"),
            ("F", "free all ghosts, as `vram free` does"),
        ),
    ),
)


def help_text(options: RenderOptions) -> RenderableType:
    """Every key, and what the states mean."""
    table = Table.grid(padding=(0, 2))
    table.add_column(width=12, overflow="fold")
    table.add_column(overflow="fold")
    for heading, keys in _PAGE:
        table.add_row(Text(""), Text(heading, style="bold"))
        for key, meaning in keys:
            table.add_row(Text(key, style="bold"), Text(options.clean(meaning)))
    table.add_row(Text(""), Text("States", style="bold"))
    for facts in STATES.values():
        table.add_row(Text(facts.label), Text(options.clean(facts.meaning)))
    return Group(table)

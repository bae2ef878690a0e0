"""The keys, for the line at the bottom and for the page behind `?`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vram.model.hold import STATES
from vram.report.layout import RenderOptions

KEYS = (
    ("?", "help", "question_mark"),
    ("q", "quit", "q"),
    ("/", "search", "slash"),
    ("t", "tree", "t"),
    ("d", "details", "d"),
    ("f", "free", "f"),
    ("m", "trim", "m"),
    ("p", "park", "p"),
    ("u", "unpark", "u"),
    ("k", "kill", "k"),
)
"""What the bottom line shows: the key, its word, and Textual's name for it."""

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
            ("f", "free: all holders of a leftover are terminated, or caches released"),
            ("m", "trim: a Python process releases what it only caches, and continues"),
            ("p  u", "park: pause it and move its memory to host memory; unpark brings it back"),
            ("k", "kill: SIGTERM, 10 s, SIGKILL"),
            ("F", "free all leftovers, as `vram free` does"),
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

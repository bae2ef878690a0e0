"""The way to an object in words: the name it begins with, and what each step after it adds.

A step is kept as the little that it has to say: a position, a piece of text, or what it does to
the words before it. Whole sentences are made of steps when somebody reads them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..record import Struct

LONGEST = 140
_HOOK = re.compile(r"(?P<on>.+)\._\w*hooks\w*\[[^\]]*\]$")
_REGISTERED = re.compile(r"\._(?:modules|parameters|buffers)\['(\w+)'\]")


class Words(Struct, frozen=True, gc=False):
    """The way to an object so far. ``kind`` is what keeps it in the end."""

    kind: str
    expression: str
    before: str = ""
    after: str = ""
    kept_by: str = ""

    def text(self) -> str:
        kept_by = f" ({self.kept_by})" if self.kept_by else ""
        return f"{self.before}{_registered(self.expression)}{self.after}{kept_by}"

    def then(self, more: str) -> Words:
        longer = self.expression + more
        if len(longer) > LONGEST:
            longer = f"{longer[: LONGEST // 2]}…{longer[-LONGEST // 3 :]}"
        return Words(self.kind, longer, self.before, self.after, self.kept_by)


class IntoClosure(Struct, frozen=True, gc=False):
    """From a function to a variable that it closes over."""

    function: str
    name: str

    def on(self, words: Words) -> Words:
        hook = _HOOK.match(words.expression)
        if hook:
            return Words("closure", self.name, f"closure of hook on {_registered(hook['on'])}{words.after}: ")
        return Words("closure", self.name, f"closure of {self.function}: ", "", words.text())


class IntoFrame(Struct, frozen=True, gc=False):
    """From what keeps a frame to the frame's variables, or to the one named."""

    kind: str
    before: str
    behind: str
    name: str = ""

    def on(self, words: Words) -> Words:
        return Words(self.kind, self.name, self.before, self.behind, words.text())


class IntoThread(Struct, frozen=True, gc=False):
    """From thread-local storage to what one thread has in it."""

    def on(self, words: Words) -> Words:
        return Words(words.kind, words.expression, words.before, " in one thread", words.kept_by)


if TYPE_CHECKING:  # typing remembers every union that it ever made, and with it our classes
    # A position, text to append, a beginning, or a turn that the words take.
    Link = int | str | Words | IntoClosure | IntoFrame | IntoThread


def extended(words: Words, link: Link) -> Words:
    """*words* with one step more."""
    if isinstance(link, int):
        return words.then(f"[{link}]")
    if isinstance(link, str):
        return words.then(link) if link else words
    return link if isinstance(link, Words) else link.on(words)


def _registered(expression: str) -> str:
    """Modules of PyTorch keep their parts in dicts of which nobody thinks: ``model.layers[4].weight``."""
    if "._" not in expression:
        return expression
    return _REGISTERED.sub(lambda part: f"[{part[1]}]" if part[1].isdigit() else f".{part[1]}", expression)

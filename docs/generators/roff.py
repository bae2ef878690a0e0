"""Text as roff for man(7): escaped so that no character of it is taken for a request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from generators.prose import blocks

# What roff would read as something else, or typeset as another character.
_SPECIAL = {
    "\\": r"\e",
    "-": r"\-",
    "'": r"\(aq",
    "`": r"\(ga",
    "^": r"\(ha",
    "~": r"\(ti",
    '"': r"\(dq",
}


def plain(text: str) -> str:
    """*text* as it is, in one line."""
    return "".join(_SPECIAL.get(letter) or _ascii(letter) for letter in " ".join(text.split()))


def prose(text: str) -> str:
    """*text* with what stands in backquotes in bold."""
    parts = re.split(r"`+([^`]+)`+", text)
    return _guarded(
        "".join(rf"\fB{plain(part)}\fR" if at % 2 else _kept(part) for at, part in enumerate(parts))
    )


def line(text: str) -> str:
    """One line that stays as it is."""
    return _guarded("".join(_SPECIAL.get(letter) or _ascii(letter) for letter in text.rstrip()))


def paragraphs(text: str) -> Iterator[str]:
    """*text* of help or a docstring, block by block."""
    for block in blocks(text):
        if block.kind == "verbatim":
            yield from (".PP", ".RS 4", ".nf", *map(line, _dedented(block.lines)), ".fi", ".RE")
        elif block.kind == "item":
            yield from (r".IP \(bu 2", prose(block.text))
        else:
            yield from (".PP", prose(block.text))


def terms(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Words with their meanings. The words are roff already, the meanings are text."""
    for term, meaning in pairs:
        yield from (".TP", _guarded(term), prose(meaning) or r"\&")


def bold(text: str) -> str:
    return rf"\fB{plain(text)}\fR"


def italic(text: str) -> str:
    return rf"\fI{plain(text)}\fR"


def _kept(text: str) -> str:
    """Prose: its spaces at both ends matter, since bold words stand beside it."""
    head = " " if text[:1].isspace() else ""
    tail = " " if text[-1:].isspace() and text.strip() else ""
    return head + plain(text) + tail


def _guarded(text: str) -> str:
    """A line may begin with anything: a dot or a quote is no request."""
    return rf"\&{text}" if text.startswith((".", "'", r"\(aq")) else text


def _ascii(letter: str) -> str:
    return letter if " " <= letter <= "~" else rf"\[u{ord(letter):04X}]"


def _dedented(lines: list[str]) -> list[str]:
    margin = min(len(each) - len(each.lstrip()) for each in lines if each)
    return [each[margin:] for each in lines]

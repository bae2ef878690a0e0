"""Text of help and docstrings, taken apart into paragraphs, lists and lines that stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

ITEM = re.compile(r"- ")
INDENTED = re.compile(r"\s{2,}\S")


class Block(NamedTuple):
    """Some lines that belong together."""

    kind: Literal["paragraph", "item", "verbatim"]
    lines: list[str]

    @property
    def text(self) -> str:
        return " ".join(line.strip() for line in self.lines).removeprefix("- ")


def blocks(text: str) -> Iterator[Block]:
    """The blocks of *text*: what is indented stays as it is, the rest may flow."""
    current: Block | None = None
    for line in text.expandtabs().splitlines():
        if not line.strip():
            if current is not None and current.kind == "verbatim":
                current.lines.append("")
                continue
            yield from _closed(current)
            current = None
        elif current is not None and _continues(current, line):
            current.lines.append(line)
        else:
            yield from _closed(current)
            current = Block(_kind(line), [line])
    yield from _closed(current)


def _closed(block: Block | None) -> Iterator[Block]:
    if block is not None:
        while not block.lines[-1]:
            block.lines.pop()
        yield block


def _kind(line: str) -> Literal["paragraph", "item", "verbatim"]:
    if ITEM.match(line):
        return "item"
    return "verbatim" if INDENTED.match(line) else "paragraph"


def _continues(block: Block, line: str) -> bool:
    if block.kind == "verbatim":
        return bool(INDENTED.match(line))
    if block.kind == "item":
        return bool(INDENTED.match(line))
    return _kind(line) == "paragraph"

"""Rows and sentences laid out for the terminal at hand; as long as they are where there is none."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

INDENT = "  "
NARROWEST = 20


def terminal_width() -> int | None:
    """What $COLUMNS or the terminal says; None in a file, a pipe or a notebook."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def laid_out(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Each row as lines: the first column to the right, the last one wrapped within itself.

    Where the last would be narrower than people can read, it goes below the others.
    """
    wide = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    start = len(INDENT) + sum(wide) + 2 * len(wide)
    is_below = width is not None and width - start < NARROWEST
    return [_row(row, wide, 2 * len(INDENT) if is_below else start, width, is_below) for row in rows]


def _row(row: Sequence[str], wide: list[int], start: int, width: int | None, is_below: bool) -> list[str]:
    first, *middle = row[:-1]
    left = [first.rjust(wide[0]), *(cell.ljust(each) for cell, each in zip(middle, wide[1:], strict=True))]
    beginning = INDENT + "  ".join(left)
    last = _pieces(row[-1], width and max(NARROWEST, width - start))
    lines = [" " * start + piece for piece in last]
    if is_below:
        return [beginning.rstrip(), *lines]
    return [f"{beginning}  {last[0]}".rstrip(), *lines[1:]]


def wrapped(line: str, width: int | None) -> list[str]:
    """A sentence, with what does not fit below it, further in."""
    indent = line[: len(line) - len(line.lstrip())]
    first, *rest = _pieces(line.lstrip(), width and max(NARROWEST, width - len(indent) - len(INDENT)))
    return [indent + first, *(indent + INDENT + piece for piece in rest)]


def _pieces(text: str, width: int | None) -> list[str]:
    return (textwrap.wrap(text, width, break_on_hyphens=False) if width else [text]) or [""]

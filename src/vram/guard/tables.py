"""Tables for a terminal and for a notebook: rows that fit the width, and live arrays with their holders."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.model.leak import EqualArrays, LeakedArray
from vram.payloads.arrays.positions import spanned, split_positions
from vram.units import counted, size

if TYPE_CHECKING:
    from vram.guard.live import Live, LiveArray
    from vram.payloads.arrays.provider import Description

# ---- text that fits a terminal ----

INDENT = "  "
NARROWEST = 20


def terminal_width() -> int | None:
    """The width by $COLUMNS or the terminal; None in a file, a pipe or a notebook."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def format_rows(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Each row as lines: the first column aligned right, the last one wrap.

    If too little width is left for the last column, it goes below the others.
    """
    wide = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:-1]]
    start = len(INDENT) + sum(wide) + 2 * len(wide)
    is_below = width is not None and width - start < NARROWEST
    return [_row_lines(row, wide, 2 * len(INDENT) if is_below else start, width, is_below) for row in rows]


def _row_lines(
    row: Sequence[str], wide: list[int], start: int, width: int | None, is_below: bool
) -> list[str]:
    first, *middle = row[:-1]
    left = [first.rjust(wide[0]), *(cell.ljust(each) for cell, each in zip(middle, wide[1:], strict=True))]
    beginning = INDENT + "  ".join(left)
    last = _wrapped_text(row[-1], width and max(NARROWEST, width - start))
    lines = [" " * start + piece for piece in last]
    if is_below:
        return [beginning.rstrip(), *lines]
    return [f"{beginning}  {last[0]}".rstrip(), *lines[1:]]


def wrap(line: str, width: int | None) -> list[str]:
    """The lines of a sentence; those after the first are indented further."""
    indent = line[: len(line) - len(line.lstrip())]
    first, *rest = _wrapped_text(line.lstrip(), width and max(NARROWEST, width - len(indent) - len(INDENT)))
    return [indent + first, *(indent + INDENT + piece for piece in rest)]


def _wrapped_text(text: str, width: int | None) -> list[str]:
    return (textwrap.wrap(text, width, break_on_hyphens=False) if width else [text]) or [""]


# ---- live arrays as a table ----

ROWS = 12
HEAD = ("size", "framework", "what", "held by")


class Row(Struct, frozen=True):
    """Arrays in the same container: all of ``history[0…11]`` are one row."""

    nbytes: int
    count: int
    framework: str
    what: str
    held_by: str
    note: str

    def cells(self) -> tuple[str, ...]:
        what = self.what if self.count == 1 else f"{self.count:,} × {self.what}"
        return (size(self.nbytes), self.framework, what, self.held_by)


def rows(arrays: Iterable[LiveArray]) -> list[Row]:
    groups: dict[tuple[str, str], list[LiveArray]] = {}
    positions: dict[tuple[str, str], list[list[int]]] = {}
    for each in arrays:
        stem, there = split_positions(each.holder.text)
        groups.setdefault((each.framework, stem), []).append(each)
        positions.setdefault((each.framework, stem), []).append(there)
    found = [_row(spanned(key[1], positions[key]), members) for key, members in groups.items()]
    return sorted(found, key=lambda row: -row.nbytes)


def _row(held_by: str, members: Sequence[LiveArray]) -> Row:
    first = members[0]
    nbytes = sum(each.nbytes for each in members if not each.is_shared)
    shared = first.is_shared and "shares memory with an array above"
    return Row(
        nbytes, len(members), first.framework, _common_text(members), held_by, first.note or shared or ""
    )


def _common_text(members: Sequence[LiveArray]) -> str:
    """The dtype and shape that all members have."""
    dtypes, shapes = {each.dtype for each in members}, {each.shape for each in members}
    if len(dtypes) > 1:
        return "arrays of several dtypes"
    return (
        dtype_and_shape(members[0]) if len(shapes) == 1 else f"{members[0].dtype} of several shapes".strip()
    )


def dtype_and_shape(array: LiveArray | Description) -> str:
    """As in ``float32 (2, 3)``."""
    return f"{array.dtype} {_shape(array.shape)}".strip()


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" if shape else ""


def equal_arrays(arrays: Sequence[LeakedArray]) -> list[EqualArrays]:
    """Put arrays together that differ only in their position; the largest together first."""
    groups: dict[tuple[int, str, str], list[list[int]]] = {}
    for each in arrays:
        stem, positions = split_positions(each.holder)
        groups.setdefault((each.nbytes, each.what, stem), []).append(positions)
    found = [
        EqualArrays(count=len(positions), each_nbytes=nbytes, what=what, holder=spanned(stem, positions))
        for (nbytes, what, stem), positions in groups.items()
    ]
    return sorted(found, key=lambda group: -group.nbytes)


def multiplied(arrays: EqualArrays) -> str:
    """Their size: "9.0 GiB", or "12 × 9.0 GiB"."""
    each = size(arrays.each_nbytes)
    return each if arrays.count == 1 else f"{arrays.count:,} × {each}"


def headline(live: Live) -> str:
    """How much is alive, as one sentence."""
    if not live.arrays:
        return "no live arrays on a GPU"
    parts = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in live.by_framework().items())
    return f"{size(live.nbytes)} in {counted(len(live.arrays), 'live array')} on GPUs: {parts}"


def live_text(live: Live, width: int | None = None) -> str:
    return "\n".join([*wrap(headline(live), width), *live_lines(live, width=width)])


def live_lines(live: Live, most: int = ROWS, width: int | None = None) -> list[str]:
    """The table without its headline, at most *width* columns wide; empty if nothing is alive."""
    found = rows(live.arrays)
    if not found:
        return []
    shown = found[:most]
    cells = [HEAD, *(row.cells() for row in shown)]
    below = " " * (max(len(line[0]) for line in cells) + 4)
    lines = []
    for note, row_lines in zip(["", *(row.note for row in shown)], format_rows(cells, width), strict=True):
        lines += row_lines
        if note:
            lines += wrap(f"{below}↳ {note}", width)
    return [*lines, *_omitted(found[most:]), *_incomplete(live)]


def _omitted(left: Sequence[Row]) -> list[str]:
    if not left:
        return []
    return [f"  … and {counted(len(left), 'smaller row')}, {size(sum(row.nbytes for row in left))} together"]


def _incomplete(live: Live) -> list[str]:
    return ["  the search ran out of time; budget_s= allows more"] if live.was_cut else []


def live_html(live: Live, before: str = "", most: int = ROWS) -> str:
    from html import escape

    found = rows(live.arrays)
    body = "".join(_html_row(row) for row in found[:most])
    head = "".join(f"<th style='text-align:left'>{word}</th>" for word in HEAD)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if found else ""
    after = "".join(
        f"<p>{escape(line.strip())}</p>" for line in (*_omitted(found[most:]), *_incomplete(live))
    )
    return f"<p>{escape(before + headline(live))}</p>{table}{after}"


def _html_row(row: Row) -> str:
    from html import escape

    first, *middle, held_by = map(escape, row.cells())
    note = f"<br><small>{escape(row.note)}</small>" if row.note else ""
    left = "".join(
        f"<td style='text-align:left'>{cell}</td>" for cell in (*middle, f"<code>{held_by}</code>{note}")
    )
    return f"<tr><td style='text-align:right'>{first}</td>{left}</tr>"

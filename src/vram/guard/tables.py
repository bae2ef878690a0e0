"""DOC"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.units import counted, size

if TYPE_CHECKING:
    from vram.guard.live import Live, LiveArray
    from vram.payloads.arrays.provider import Description

# ---- text that fits a terminal ----


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
    return [_row_lines(row, wide, 2 * len(INDENT) if is_below else start, width, is_below) for row in rows]


def _row_lines(
    row: Sequence[str], wide: list[int], start: int, width: int | None, is_below: bool
) -> list[str]:
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


# ---- live arrays as a table ----


ROWS = 12
_POSITION = re.compile(r"\[\d+\]")
HEAD = ("size", "framework", "what", "kept by")


class Row(Struct, frozen=True):
    """Arrays that lie side by side in one place: ``history[…]`` is one row, however many they are."""

    nbytes: int
    count: int
    framework: str
    what: str
    kept_by: str
    note: str

    def cells(self) -> tuple[str, ...]:
        what = self.what if self.count == 1 else f"{self.count:,} × {self.what}"
        return (size(self.nbytes), self.framework, what, self.kept_by)


def rows(arrays: Iterable[LiveArray]) -> list[Row]:
    groups: dict[tuple[str, str], list[LiveArray]] = {}
    for each in arrays:
        stem = _POSITION.sub("[…]", each.holder.text)
        groups.setdefault((each.framework, stem), []).append(each)
    found = [_row(stem, members) for (_, stem), members in groups.items()]
    return sorted(found, key=lambda row: -row.nbytes)


def _row(stem: str, members: Sequence[LiveArray]) -> Row:
    first = members[0]
    alone = len(members) == 1
    nbytes = sum(each.nbytes for each in members if not each.is_shared)
    kept_by = first.holder.text if alone else stem
    shared = first.is_shared and "shares memory told above"
    return Row(nbytes, len(members), first.framework, _alike(members), kept_by, first.note or shared or "")


def _alike(members: Sequence[LiveArray]) -> str:
    """What the members have in common."""
    dtypes, shapes = {each.dtype for each in members}, {each.shape for each in members}
    if len(dtypes) > 1:
        return "arrays of several dtypes"
    return what(members[0]) if len(shapes) == 1 else f"{members[0].dtype} of several shapes".strip()


def what(array: LiveArray | Description) -> str:
    """Its dtype and shape, as one writes them."""
    return f"{array.dtype} {_shape(array.shape)}".strip()


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})" if shape else ""


def headline(live: Live) -> str:
    """How much is alive, in a sentence."""
    if not live.arrays:
        return "no live arrays on a GPU"
    parts = ", ".join(f"{name} {size(nbytes)}" for name, nbytes in live.by_framework().items())
    return f"{size(live.nbytes)} in {counted(len(live.arrays), 'live array')} on GPUs: {parts}"


def live_text(live: Live, width: int | None = None) -> str:
    return "\n".join([*wrapped(headline(live), width), *live_lines(live, width=width)])


def live_lines(live: Live, most: int = ROWS, width: int | None = None) -> list[str]:
    """The table without its headline, *width* columns wide at most; nothing where nothing is alive."""
    found = rows(live.arrays)
    if not found:
        return []
    shown = found[:most]
    cells = [HEAD, *(row.cells() for row in shown)]
    below = " " * (max(len(line[0]) for line in cells) + 4)
    lines = []
    for note, told in zip(["", *(row.note for row in shown)], laid_out(cells, width), strict=True):
        lines += told
        if note:
            lines += wrapped(f"{below}↳ {note}", width)
    return [*lines, *_rest(found[most:]), *_cut(live)]


def _rest(left: Sequence[Row]) -> list[str]:
    if not left:
        return []
    return [f"  … and {counted(len(left), 'smaller row')}, {size(sum(row.nbytes for row in left))} together"]


def _cut(live: Live) -> list[str]:
    return ["  the search was cut short; budget_s= gives it more time"] if live.was_cut else []


def live_html(live: Live, before: str = "", most: int = ROWS) -> str:
    from html import escape

    found = rows(live.arrays)
    body = "".join(_html_row(row) for row in found[:most])
    head = "".join(f"<th style='text-align:left'>{word}</th>" for word in HEAD)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if found else ""
    after = "".join(f"<p>{escape(line.strip())}</p>" for line in (*_rest(found[most:]), *_cut(live)))
    return f"<p>{escape(before + headline(live))}</p>{table}{after}"


def _html_row(row: Row) -> str:
    from html import escape

    first, *middle, kept_by = map(escape, row.cells())
    note = f"<br><small>{escape(row.note)}</small>" if row.note else ""
    left = "".join(
        f"<td style='text-align:left'>{cell}</td>" for cell in (*middle, f"<code>{kept_by}</code>{note}")
    )
    return f"<tr><td style='text-align:right'>{first}</td>{left}</tr>"

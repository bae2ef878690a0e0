"""What is alive and who keeps it, as a table for a terminal and for a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.units import counted, size

if TYPE_CHECKING:
    from vram.guard.live import Live, LiveArray

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
    return Row(nbytes, len(members), first.framework, what(first), kept_by, first.note or shared or "")


def what(array: LiveArray) -> str:
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


def live_text(live: Live) -> str:
    return "\n".join([headline(live), *live_lines(live)])


def live_lines(live: Live, most: int = ROWS) -> list[str]:
    """The table without its headline; nothing where nothing is alive."""
    found = rows(live.arrays)
    if not found:
        return []
    shown = found[:most]
    cells = [HEAD, *(row.cells() for row in shown)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEAD) - 1)]
    lines = []
    for position, line in enumerate(cells):
        first = line[0].rjust(widths[0])
        middle = [cell.ljust(width) for cell, width in zip(line[1:-1], widths[1:], strict=True)]
        lines.append("  " + "  ".join([first, *middle, line[-1]]))
        if position and shown[position - 1].note:
            lines.append(" " * (widths[0] + 4) + f"↳ {shown[position - 1].note}")
    return [*lines, *_rest(found[most:]), *_cut(live)]


def _rest(left: Sequence[Row]) -> list[str]:
    if not left:
        return []
    return [f"  … and {counted(len(left), 'smaller row')}, {size(sum(row.nbytes for row in left))} together"]


def _cut(live: Live) -> list[str]:
    return ["  the search was cut short; budget_s= gives it more time"] if live.was_cut else []


def live_html(live: Live, most: int = ROWS) -> str:
    from html import escape

    found = rows(live.arrays)
    body = "".join(_html_row(row) for row in found[:most])
    head = "".join(f"<th style='text-align:left'>{word}</th>" for word in HEAD)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if found else ""
    after = "".join(f"<p>{escape(line.strip())}</p>" for line in (*_rest(found[most:]), *_cut(live)))
    return f"<p>{escape(headline(live))}</p>{table}{after}"


def _html_row(row: Row) -> str:
    from html import escape

    size_, framework, what, kept_by = map(escape, row.cells())
    note = f"<br><small>{escape(row.note)}</small>" if row.note else ""
    return (
        f"<tr><td style='text-align:right'>{size_}</td><td>{framework}</td><td>{what}</td>"
        f"<td style='text-align:left'><code>{kept_by}</code>{note}</td></tr>"
    )

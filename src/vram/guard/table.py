"""What is alive and who keeps it, as a table for a terminal and for a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.guard.columns import laid_out, wrapped
from vram.units import counted, size

if TYPE_CHECKING:
    from vram.guard.live import Live, LiveArray
    from vram.payloads.arrays.frameworks.array import Description

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

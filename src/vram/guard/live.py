"""``vram.live()``: every live array on a GPU, and its table; ``vram.holders(obj)``: what holds an object."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from msgspec import Struct

from vram.errors import NoSuchDevice, UsageError
from vram.guard.memory import visible_devices
from vram.model.leak import EqualArrays, LeakedArray
from vram.payloads.arrays.frameworks import secondary_holders
from vram.payloads.arrays.heap.references import spanned, split_positions
from vram.payloads.arrays.heap.search import (
    BUDGET_S,
    ObjectHolder,
    ReferencePaths,
    all_holders,
)
from vram.payloads.arrays.inventory import FoundArray, find
from vram.payloads.arrays.native_references import paths_to
from vram.payloads.arrays.provider import Description
from vram.payloads.tracked_objects import tracked_objects
from vram.units import counted, size


class LiveArray(Struct, frozen=True, gc=False):
    """One array. ``nbytes`` is the memory that cannot be freed while it lives; ``is_shared`` if an array
    before it holds the same memory. ``pointer`` is where that memory begins."""

    framework: str
    description: Description
    is_shared: bool
    paths: ReferencePaths
    key: int

    @property
    def nbytes(self) -> int:
        return self.description.nbytes

    @property
    def device(self) -> int | None:
        return self.description.device

    @property
    def dtype(self) -> str:
        return self.description.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.description.shape

    @property
    def pointer(self) -> int:
        return self.description.pointer

    @property
    def note(self) -> str:
        return self.description.note

    @property
    def holder(self) -> ObjectHolder:
        """The shortest reference path that holds it."""
        return self.paths.holder(self.key)

    def __repr__(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        return f"<{self.framework} {dtype_and_shape(self)}, {size(self.nbytes)}{where}: {self.holder}>"


class Live(Struct, frozen=True):
    """All of them, largest first. Holds text and numbers, never an array.

    ``was_cut``: the search for holders ran out of time."""

    arrays: tuple[LiveArray, ...]
    was_cut: bool = False

    @property
    def nbytes(self) -> int:
        """The device memory that they hold; shared memory counts once."""
        return sum(each.nbytes for each in self.arrays if not each.is_shared)

    def by_framework(self) -> dict[str, int]:
        return _sum_by_framework(self.arrays)

    def __iter__(self) -> Iterator[LiveArray]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, position: int) -> LiveArray:
        return self.arrays[position]

    def __repr__(self) -> str:
        width = terminal_width()
        return "\n".join([*wrap(headline(self), width), *live_lines(self, width)])

    def _repr_html_(self) -> str:
        return live_html(self)


# Their own figures cover only memory that waits to be freed: what their arrays hold comes on top.
_COUNT_ONLY_CACHES = ("Numba", "PyCUDA", "vram.Buffer")
# Of buffers: the driver's pools have figures of their own, and no process is charged with managed memory.
_COUNTED_ELSEWHERE = ("stream-ordered", "managed")


def uncounted(arrays: Live) -> dict[str, int]:
    """What arrays hold that no figure of a framework or of a pool covers, by framework."""
    return _sum_by_framework(
        each
        for each in arrays
        if each.framework in _COUNT_ONLY_CACHES and each.dtype not in _COUNTED_ELSEWHERE
    )


def _sum_by_framework(arrays: Iterable[LiveArray]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for each in arrays:
        totals[each.framework] = totals.get(each.framework, 0) + (0 if each.is_shared else each.nbytes)
    return totals


def live(device: int | None = None, *, holders: bool = True, budget_s: float = BUDGET_S) -> Live:
    """Find every live array of every loaded framework, on *device* or on all.

    Each comes with the shortest reference path that holds it. ``holders=False`` leaves out that search,
    which takes at most *budget_s* seconds of processor time. No code of any object is run, and no
    reference to one is kept.
    """
    if device is not None:
        check_device(device)
    check_budget(budget_s)
    heap: list[object] = tracked_objects()
    return live_in(heap, device, budget_s if holders else None)


def live_in(
    heap: list[object], device: int | None, budget_s: float | None, types: Iterable[type] | None = None
) -> Live:
    """As :func:`live`, on the objects in *heap*; the list is empty afterwards."""
    types = set(map(type, heap)) if types is None else types
    found = find(heap, device, types)
    if not found or budget_s is None:
        heap.clear()
        return Live(_sort_arrays(found, ReferencePaths()))
    paths = paths_to(found, heap, secondary_holders(), budget_s)
    return Live(_sort_arrays(found, paths), paths.was_cut)


def check_device(device: object) -> None:
    """Raise NoSuchDevice unless *device* is the number of a GPU, as far as that is known without CUDA."""
    if isinstance(device, bool) or not isinstance(device, int) or device < 0:
        raise NoSuchDevice(f"{device!r} is not the number of a GPU", hint="give it as 0, 1, …")
    count = visible_devices()
    if count is not None and device >= count:
        raise NoSuchDevice(
            f"there is no GPU {device} here",
            hint=f"CUDA sees {counted(count, 'GPU')}, from 0 on; CUDA_VISIBLE_DEVICES may hide others",
        )


def check_budget(budget_s: object) -> None:
    if isinstance(budget_s, bool) or not isinstance(budget_s, int | float) or not budget_s >= 0:
        raise UsageError(f"budget_s={budget_s!r} is not a number of seconds", hint="write budget_s=5")


def _sort_arrays(found: Sequence[FoundArray], paths: ReferencePaths) -> tuple[LiveArray, ...]:
    """Largest first; those that share the memory of another one come last."""
    ordered = sorted(found, key=attrgetter("description.nbytes"), reverse=True)
    return tuple(
        LiveArray(each.provider.NAME, each.description, each.is_shared, paths, each.key)
        for each in sorted(ordered, key=attrgetter("is_shared"))
    )


class Holders(Struct, frozen=True):
    """Who refers to an object, shortest path first. Holds text, never the object.

    ``was_cut``: the search ran out of time."""

    found: tuple[ObjectHolder, ...]
    was_cut: bool

    def __iter__(self) -> Iterator[ObjectHolder]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> ObjectHolder:
        return self.found[position]

    def __repr__(self) -> str:
        cut = ["(the search ran out of time: budget_s= allows more)"] if self.was_cut else []
        return "\n".join([*map(str, self.found), *cut])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(f"<li><code>{escape(str(each))}</code></li>" for each in self.found)
        cut = "<p>The search ran out of time.</p>" if self.was_cut else ""
        return f"<ul>{rows}</ul>{cut}"


def holders(obj: object, *, budget_s: float = BUDGET_S) -> Holders:
    """Return who holds *obj*: ``cell 12: history[3]``, ``module utils: _cache['x']``.

    Searches the heap for at most *budget_s* seconds of processor time, runs no code of any object, and
    keeps no reference to one.
    """
    check_budget(budget_s)
    return Holders(*all_holders(obj, tracked_objects(), budget_s))


# ---- text that fits a terminal ----

INDENT = "  "
NARROWEST = 20


def terminal_width() -> int | None:
    """The width by $COLUMNS or the terminal; None in a file, a pipe or a notebook."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def format_rows(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Each row as lines: the first column to the right, the last one wrapped, if need be below the others."""
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
    last = _wrap_text(row[-1], width and max(NARROWEST, width - start))
    lines = [" " * start + piece for piece in last]
    if is_below:
        return [beginning.rstrip(), *lines]
    return [f"{beginning}  {last[0]}".rstrip(), *lines[1:]]


def wrap(line: str, width: int | None) -> list[str]:
    """The lines of a sentence; those after the first are indented further."""
    indent = line[: len(line) - len(line.lstrip())]
    first, *rest = _wrap_text(line.lstrip(), width and max(NARROWEST, width - len(indent) - len(INDENT)))
    return [indent + first, *(indent + INDENT + piece for piece in rest)]


def _wrap_text(text: str, width: int | None) -> list[str]:
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


def live_lines(live: Live, width: int | None) -> list[str]:
    """The table without its headline, at most *width* columns wide; empty if nothing is alive."""
    found = rows(live.arrays)
    if not found:
        return []
    shown = found[:ROWS]
    cells = [HEAD, *(row.cells() for row in shown)]
    below = " " * (max(len(line[0]) for line in cells) + 4)
    lines = []
    for note, row_lines in zip(["", *(row.note for row in shown)], format_rows(cells, width), strict=True):
        lines += row_lines
        if note:
            lines += wrap(f"{below}↳ {note}", width)
    return [*lines, *(f"  {line}" for line in _left_out(live, found[ROWS:]))]


def _left_out(live: Live, left: Sequence[Row]) -> Iterator[str]:
    """What the table does not show: smaller rows, and what there was no time for."""
    if left:
        nbytes = sum(row.nbytes for row in left)
        yield f"… and {counted(len(left), 'smaller row')}, {size(nbytes)} together"
    if live.was_cut:
        yield "the search ran out of time; budget_s= allows more"


def live_html(live: Live, before: str = "") -> str:
    from html import escape

    found = rows(live.arrays)
    body = "".join(_html_row(row) for row in found[:ROWS])
    head = "".join(f"<th style='text-align:left'>{word}</th>" for word in HEAD)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if found else ""
    after = "".join(f"<p>{escape(line)}</p>" for line in _left_out(live, found[ROWS:]))
    return f"<p>{escape(before + headline(live))}</p>{table}{after}"


def _html_row(row: Row) -> str:
    from html import escape

    first, *middle, held_by = map(escape, row.cells())
    note = f"<br><small>{escape(row.note)}</small>" if row.note else ""
    left = "".join(
        f"<td style='text-align:left'>{cell}</td>" for cell in (*middle, f"<code>{held_by}</code>{note}")
    )
    return f"<tr><td style='text-align:right'>{first}</td>{left}</tr>"

"""``vram.live()``: every live array on a GPU, how large it is, and who keeps it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from vram.errors import NoSuchDevice
from vram.guard.heap import chains
from vram.guard.heap.chains import BUDGET_S, UNKNOWN, Holder
from vram.guard.inventory import Found, find
from vram.guard.table import live_html, live_text


class LiveArray(Struct, frozen=True, gc=False):
    """One array. ``nbytes`` is the memory that it keeps from being freed; ``is_shared`` where an
    array before it keeps the same memory. ``pointer`` is where that memory begins."""

    framework: str
    nbytes: int
    device: int | None
    dtype: str
    shape: tuple[int, ...]
    pointer: int
    holder: Holder
    note: str = ""
    is_shared: bool = False


class Live(Struct, frozen=True):
    """All of them, largest first. Holds text and numbers, never an array."""

    arrays: tuple[LiveArray, ...]
    was_cut: bool = False

    @property
    def nbytes(self) -> int:
        """Device memory that they keep, what they share counted once."""
        return sum(each.nbytes for each in self.arrays if not each.is_shared)

    def by_framework(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for each in self.arrays:
            totals[each.framework] = totals.get(each.framework, 0) + (0 if each.is_shared else each.nbytes)
        return totals

    def __iter__(self) -> Iterator[LiveArray]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, position: int) -> LiveArray:
        return self.arrays[position]

    def __repr__(self) -> str:
        return live_text(self)

    def _repr_html_(self) -> str:
        return live_html(self)


def live(device: int | None = None, *, holders: bool = True, budget_s: float = BUDGET_S) -> Live:
    """Find every live array of every loaded framework, on *device* or on all.

    Each comes with the shortest chain of references that keeps it, unless ``holders=False``
    saves the search, which takes *budget_s* seconds of processor time at most. No code of any object met is
    run, and no reference is left behind.
    """
    if device is not None:
        check_device(device)
    heap: list[object] = gc.get_objects()
    return survey(heap, device, budget_s if holders else None)


def survey(heap: list[object], device: int | None, budget_s: float | None) -> Live:
    """As :func:`live`, on a heap that was taken before; it comes back empty."""
    found = find(heap, device)
    if not found or budget_s is None:
        heap.clear()
        return Live(_listed(found, {}))
    kept = chains.shortest([each.array for each in found], heap, budget_s)
    kept.by_id.update(_gradients(found, kept.by_id))
    return Live(_listed(found, kept.by_id), kept.was_cut)


def check_device(device: object) -> None:
    """Raise unless *device* is the number of a GPU, as far as that can be told without waking any."""
    if isinstance(device, bool) or not isinstance(device, int) or device < 0:
        raise NoSuchDevice(f"{device!r} is not the number of a GPU", hint="give it as 0, 1, …")


def _listed(found: Sequence[Found], holders: dict[int, Holder]) -> tuple[LiveArray, ...]:
    listed = [_array(each, holders.get(id(each.array), UNKNOWN)) for each in found]
    listed.sort(key=lambda each: (each.is_shared, -each.nbytes))
    return tuple(listed)


def _array(found: Found, holder: Holder) -> LiveArray:
    said = found.description
    return LiveArray(
        found.leaf.NAME,
        said.nbytes,
        said.device,
        said.dtype,
        said.shape,
        said.pointer,
        holder,
        said.note,
        found.is_shared,
    )


def _gradients(found: Sequence[Found], holders: dict[int, Holder]) -> dict[int, Holder]:
    """A gradient is held by its parameter, where only its framework can see it."""
    named: dict[int, Holder] = {}
    for leaf in {id(each.leaf): each.leaf for each in found}.values():
        gradients: Any = getattr(leaf, "gradients", None)
        if gradients is not None:
            for gradient, owner in gradients(each.array for each in found if each.leaf is leaf):
                keeper, known = holders.get(id(owner)), holders.get(id(gradient))
                if keeper is not None and known is not None and known.kind == "native":
                    named[id(gradient)] = Holder(f"{keeper.text}.grad", keeper.kind)
    return named

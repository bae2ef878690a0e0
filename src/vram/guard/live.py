"""``vram.live()``: every live array on a GPU; ``vram.holders(obj)``: everything that holds an object."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from msgspec import Struct

from vram.errors import NoSuchDevice, UsageError
from vram.guard.memory import visible_devices
from vram.guard.tables import dtype_and_shape, live_html, live_text, terminal_width
from vram.payloads.arrays.frameworks import secondary_holders
from vram.payloads.arrays.heap.search import (
    BUDGET_S,
    ObjectHolder,
    ReferencePaths,
    all_holders,
    shortest_paths,
)
from vram.payloads.arrays.inventory import FoundArray, find
from vram.payloads.arrays.native_references import name_native_holders
from vram.payloads.arrays.provider import Description
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
        return live_text(self, terminal_width())

    def _repr_html_(self) -> str:
        return live_html(self)


# Their own figures cover only memory that waits to be freed: what their arrays hold comes on top.
_COUNT_ONLY_CACHES = ("Numba", "PyCUDA", "vram.Buffer")
# Of buffers: the driver's pools have figures of their own, and no process is charged with managed memory.
_COUNTED_ELSEWHERE = ("stream-ordered", "managed")


def uncounted(arrays: Live) -> dict[str, int]:
    """What arrays hold that no figure of a framework or of a pool covers, by framework."""
    totals: dict[str, int] = {}
    for each in arrays:
        if each.framework in _COUNT_ONLY_CACHES and each.dtype not in _COUNTED_ELSEWHERE:
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
    heap: list[object] = gc.get_objects()
    return live_in(heap, device, budget_s if holders else None)


def live_in(
    heap: list[object], device: int | None, budget_s: float | None, types: Iterable[type] | None = None
) -> Live:
    """As :func:`live`, on the objects in *heap*; the list is empty afterwards."""
    types = set(map(type, heap)) if types is None else types
    found = find(heap, device, types)
    if not found or budget_s is None:
        heap.clear()
        return Live(_listed(found, ReferencePaths()))
    paths = shortest_paths([each.array for each in found], heap, budget_s, secondary_holders())
    name_native_holders(found, paths)
    return Live(_listed(found, paths), paths.was_cut)


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


def _listed(found: Sequence[FoundArray], paths: ReferencePaths) -> tuple[LiveArray, ...]:
    """Largest first; those that share the memory of another one come last."""
    ordered = sorted(found, key=attrgetter("description.nbytes"), reverse=True)
    return tuple(
        LiveArray(each.provider.NAME, each.description, each.is_shared, paths, id(each.array))
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
    return Holders(*all_holders(obj, gc.get_objects(), budget_s))

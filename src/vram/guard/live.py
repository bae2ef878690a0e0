"""DOC"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from msgspec import Struct

from vram.errors import NoSuchDevice, UsageError
from vram.guard.memory import visible_devices
from vram.guard.tables import live_html, live_text, terminal_width, what
from vram.payloads.arrays.frameworks import secondary_holders
from vram.payloads.arrays.heap.search import BUDGET_S, Holder, Trails, every, shortest
from vram.payloads.arrays.inventory import Found, find
from vram.payloads.arrays.native_references import name_keepers
from vram.payloads.arrays.provider import Description
from vram.units import counted, size


class LiveArray(Struct, frozen=True, gc=False):
    """One array. ``nbytes`` is the memory that it keeps from being freed; ``is_shared`` where an
    array before it keeps the same memory. ``pointer`` is where that memory begins."""

    framework: str
    description: Description
    is_shared: bool
    trails: Trails
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
    def holder(self) -> Holder:
        """The shortest chain of references that keeps it."""
        return self.trails.holder(self.key)

    def __repr__(self) -> str:
        where = "" if self.device is None else f" on GPU {self.device}"
        return f"<{self.framework} {what(self)}, {size(self.nbytes)}{where}: {self.holder}>"


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
        return live_text(self, terminal_width())

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
    check_budget(budget_s)
    heap: list[object] = gc.get_objects()
    return survey(heap, device, budget_s if holders else None)


def survey(
    heap: list[object], device: int | None, budget_s: float | None, types: Iterable[type] | None = None
) -> Live:
    """As :func:`live`, on a heap that was taken before; it comes back empty."""
    types = set(map(type, heap)) if types is None else types
    found = find(heap, device, types)
    if not found or budget_s is None:
        heap.clear()
        return Live(_listed(found, Trails()))
    trails = shortest([each.array for each in found], heap, budget_s, secondary_holders(), types)
    name_keepers(found, trails)
    return Live(_listed(found, trails), trails.was_cut)


def check_device(device: object) -> None:
    """Raise unless *device* is the number of a GPU, as far as that can be told without waking any."""
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
        raise UsageError(f"budget_s={budget_s!r} is no number of seconds", hint="write budget_s=5")


def _listed(found: Sequence[Found], trails: Trails) -> tuple[LiveArray, ...]:
    """Largest first, those that share their memory with one before them behind."""
    ordered = sorted(found, key=attrgetter("description.nbytes"), reverse=True)
    return tuple(
        LiveArray(each.provider.NAME, each.description, each.is_shared, trails, id(each.array))
        for each in sorted(ordered, key=attrgetter("is_shared"))
    )


class Holders(Struct, frozen=True):
    """Who refers to an object, nearest name first. Holds text, never the object."""

    found: tuple[Holder, ...]
    was_cut: bool

    def __iter__(self) -> Iterator[Holder]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, position: int) -> Holder:
        return self.found[position]

    def __repr__(self) -> str:
        cut = ["(search cut short: give it more than the default with budget_s=)"] if self.was_cut else []
        return "\n".join([*map(str, self.found), *cut])

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(f"<li><code>{escape(str(each))}</code></li>" for each in self.found)
        cut = "<p>Search cut short.</p>" if self.was_cut else ""
        return f"<ul>{rows}</ul>{cut}"


def holders(obj: object, *, budget_s: float = BUDGET_S) -> Holders:
    """Say who keeps *obj*: ``cell 12: history[3]``, ``module utils: _cache['x']``.

    Looks at the heap for *budget_s* seconds of processor time at most, runs no code of any object
    that it meets, and leaves no reference behind.
    """
    check_budget(budget_s)
    return Holders(*every(obj, gc.get_objects(), budget_s))

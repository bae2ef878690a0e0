"""Which arrays existed when a scope began, and which are declared to outlive it. Holds no array itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from ctypes import byref, c_int, c_uint64
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.guard.memory import cuda
from vram.guard.native import BUFFER_ID

if TYPE_CHECKING:
    from vram.payloads.arrays.provider import ArrayProvider


class _Dead:
    pass


# A reference whose object is gone.
_DEAD: weakref.ref[Any] = weakref.ref(_Dead())


class Baseline:
    """The arrays that existed at one moment. ``array in baseline`` is False for one created later,
    also if Python gave it the memory, and so the ``id``, of one that existed."""

    def __init__(self, arrays: Iterable[object] = ()) -> None:
        self._references = {id(each): weak_reference(each) for each in arrays}

    def __contains__(self, array: object) -> bool:
        reference = self._references.get(id(array), _DEAD)
        return reference is None or reference() is array


def weak_reference(array: object) -> weakref.ref[Any] | None:
    """None for objects that do not support weak references."""
    try:
        return weakref.ref(array)
    except TypeError:
        return None


_Address = tuple[int | None, int]  # device and pointer


class _KeptArray(NamedTuple):
    """An array's memory. A later array may get the same address, but not the same ``allocation``."""

    nbytes: int
    allocation: int | None
    provider: ArrayProvider
    array: weakref.ref[Any] | None


class KeptArrays:
    """Arrays that the program marked with ``keep``: each memory counts once, and only while it lives."""

    def __init__(self) -> None:
        # Addresses are reused, so a group that never ends has no more entries than addresses it used.
        self._arrays: dict[_Address, _KeptArray] = {}

    def add(self, value: object, but: Baseline | None) -> None:
        """Add the arrays inside *value*, except those in the baseline *but*."""
        from vram.guard.leak_check import arrays_in

        for provider, array, description in arrays_in(value):
            if but is None or array not in but:
                number = _allocation(description.pointer)
                kept = _KeptArray(description.nbytes, number, provider, weak_reference(array))
                self._arrays[description.device, description.pointer] = kept

    def nbytes(self) -> int:
        """The bytes of those that live now."""
        arrays = dict(self._arrays)
        living = {address for address, kept in arrays.items() if _still_has_memory(address, kept)}
        if len(living) < len(arrays):
            living |= _all_array_addresses()  # another array may share the memory of one that is gone
        return sum(
            kept.nbytes
            for address, kept in arrays.items()
            if address in living and _allocation(address[1]) == kept.allocation
        )


def _still_has_memory(address: _Address, kept: _KeptArray) -> bool:
    array = kept.array() if kept.array is not None else None
    now = next(kept.provider.describe([array], set())) if array is not None else None
    return now is not None and (now.device, now.pointer) == address


def _all_array_addresses() -> set[_Address]:
    from vram.payloads.arrays.inventory import find

    return {(each.description.device, each.description.pointer) for each in find(gc.get_objects())}


def _allocation(pointer: int) -> int | None:
    """A number that the driver gives to one allocation and never again; None where it gives none."""
    library, number = cuda(), c_uint64()
    if library is None or library.cuPointerGetAttribute(byref(number), c_int(BUFFER_ID), c_uint64(pointer)):
        return None
    return number.value

"""DOC"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from ctypes import byref, c_int, c_uint64
from typing import TYPE_CHECKING, Any, NamedTuple

from vram.guard.memory import cuda

if TYPE_CHECKING:
    from vram.payloads.arrays.provider import ArrayProvider


class _Nobody:
    pass


# A reference whose object is gone.
_NOBODY: weakref.ref[Any] = weakref.ref(_Nobody())


class Known:
    """Keeps no array alive, and is asked ``array in known``."""

    def __init__(self, arrays: Iterable[object] = ()) -> None:
        self._seen = {id(each): weak(each) for each in arrays}

    def __contains__(self, array: object) -> bool:
        # An ``id`` alone is soon another's: Python gives a freed object's place to the next.
        seen = self._seen.get(id(array), _NOBODY)
        return seen is None or seen() is array


def weak(array: object) -> weakref.ref[Any] | None:
    """None for those that know no weak references."""
    try:
        return weakref.ref(array)
    except TypeError:
        return None


BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID

_Where = tuple[int | None, int]


class _Piece(NamedTuple):
    """An array's memory. The next owner may get the same address, but not the same ``allocation``."""

    nbytes: int
    allocation: int | None
    provider: ArrayProvider
    array: weakref.ref[Any] | None


class OnPurpose:
    """Holds no array: what is dropped is gone, and excuses nothing."""

    def __init__(self) -> None:
        # Addresses come again, so that a crowd that never ends has no more of them than it ever used.
        self._pieces: dict[_Where, _Piece] = {}

    def add(self, value: object, but: Known | None) -> None:
        """The arrays inside *value*, those of *but* left out."""
        from vram.guard.leak_check import arrays_in

        for provider, array, told in arrays_in(value):
            if but is None or array not in but:
                piece = _Piece(told.nbytes, _allocation(told.pointer), provider, weak(array))
                self._pieces[told.device, told.pointer] = piece

    def nbytes(self) -> int:
        """Of those that are there at this moment."""
        pieces = dict(self._pieces)
        there = {where for where, piece in pieces.items() if _is_told(where, piece)}
        if len(there) < len(pieces):
            there |= _all_told()  # another array may share the memory of one that is gone
        return sum(
            piece.nbytes
            for where, piece in pieces.items()
            if where in there and _allocation(where[1]) == piece.allocation
        )


def _is_told(where: _Where, piece: _Piece) -> bool:
    """Whether the array itself still has that memory."""
    array = piece.array() if piece.array is not None else None
    told = next(piece.provider.describe([array], set())) if array is not None else None
    return told is not None and (told.device, told.pointer) == where


def _all_told() -> set[_Where]:
    from vram.payloads.arrays.inventory import find

    return {(each.description.device, each.description.pointer) for each in find(gc.get_objects())}


def _allocation(pointer: int) -> int | None:
    """A number that the driver gives to one allocation and never again; None where it does not tell."""
    library, number = cuda(), c_uint64()
    if library is None or library.cuPointerGetAttribute(byref(number), c_int(BUFFER_ID), c_uint64(pointer)):
        return None
    return number.value

"""DOC"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint64, c_void_p
from typing import Any, NamedTuple

LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvrambuffer.so")
BUFFER_ID = 7
LOST = -1  # no code of the driver's is below zero

# What C is given to call, in the order of the table in native/buffer/own.c.
CALLS = ("cuMemAlloc_v2", "cuPointerGetAttribute", "cuMemFree_v2")


class Piece(ctypes.Structure):
    """Where it lies, and its number, 0 where the driver does not tell. A reference is one to its address."""

    _fields_ = (("pointer", c_uint64), ("identity", c_uint64))


class Pair(NamedTuple):
    """``take(c_size_t(nbytes), byref(piece))`` and ``give(byref(piece))``: the driver's code, or LOST."""

    take: Callable[[c_size_t, Any], int]
    give: Callable[[Any], int]


def pair(driver: ctypes.CDLL, path: str = LIBRARY) -> Pair:
    """The two calls, by C where that is installed."""
    try:
        native = ctypes.CDLL(path)
    except OSError:
        return _in_python(driver)
    addresses = [ctypes.cast(getattr(driver, name), c_void_p) for name in CALLS]
    native.vram_own_prepare((c_void_p * len(CALLS))(*addresses))
    return Pair(native.vram_own_take, native.vram_own_give)


def identity(ask: Any, pointer: int) -> int:
    """The number of the allocation at *pointer*."""
    number = c_uint64()
    return 0 if ask(byref(number), BUFFER_ID, c_uint64(pointer)) else number.value


def _in_python(driver: ctypes.CDLL) -> Pair:
    take_memory, ask, give_memory = (getattr(driver, name) for name in CALLS)

    def take(nbytes: c_size_t, reference: Any) -> int:
        code: int = take_memory(reference, nbytes)
        if not code:
            piece = reference._obj
            piece.identity = identity(ask, piece.pointer)
        return code

    def give(reference: Any) -> int:
        piece = reference._obj
        same = identity(ask, piece.pointer) == piece.identity
        return int(give_memory(c_uint64(piece.pointer))) if same else LOST

    return Pair(take, give)

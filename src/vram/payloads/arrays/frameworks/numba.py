"""Numba: device arrays by the allocation that they keep, and allocations that no array keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..heap.peek import attributes, defines, is_a, read_in_c
from .array import Description, Spelled, kinds, loaded, view_note

NAME = "Numba"
DRIVER = "numba.cuda.cudadrv.driver"
FIELDS = ("gpu_data", "alloc_size", "dtype", "shape")
_get = object.__getattribute__


def arrays() -> tuple[type, ...]:
    return kinds(loaded("numba.cuda.cudadrv.devicearray"), "DeviceNDArrayBase", "DeviceRecord")


def blocks() -> tuple[type, ...]:
    return kinds(loaded(DRIVER), "OwnedPointer", "AutoFreePointer")


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    return _told(found, _Reader().array)


def describe_blocks(found: Iterable[Any], _told_before: set[int]) -> Iterator[Description | None]:
    return _told(found, _Reader().memory)


def _told(found: Iterable[Any], read: Callable[[Any], Description | None]) -> Iterator[Description | None]:
    for each in found:
        try:
            yield read(each)
        except (ReferenceError, AttributeError):
            yield None  # its context is gone, and the memory with it


class _Reader:
    """Arrays by the hundred thousand share a few allocations and a few types: each is asked once."""

    def __init__(self) -> None:
        self._names = Spelled()
        self._places: dict[int, tuple[int, int, int]] = {}
        self._plain: dict[type, bool] = {}
        # Host memory that a GPU reads in place.
        self._on_host = kinds(loaded(DRIVER), "MappedMemory", "MappedOwnedPointer")

    def array(self, array: Any) -> Description | None:
        data, nbytes, dtype, shape = self._fields(array)
        if data is None or is_a(data, *self._on_host):
            return None
        size, device, address = self._place(getattr(data, "_mem", data))
        note = "" if nbytes is None else view_note(nbytes, size)
        return Description(size, device, address, self._names[dtype], shape, note)

    def _fields(self, array: Any) -> tuple[Any, ...]:
        kind = type(array)
        if kind not in self._plain:
            self._plain[kind] = not defines(kind, *FIELDS)
        if self._plain[kind]:
            return tuple([_get(array, name) for name in FIELDS])
        # A subclass has put something of its own in front: past it, into the instance. Managed arrays
        # are NumPy's as well, which knows their dtype and shape; it has no size of the allocation.
        own = attributes(array) or {}
        return tuple([own[name] if name in own else read_in_c(array, name) for name in FIELDS])

    def memory(self, block: Any) -> Description | None:
        if is_a(block, *self._on_host):
            return None
        memory = getattr(block, "_mem", block)
        # What nothing refers to any more waits to be freed: the framework's own figures tell it.
        return Description(*self._place(memory), "memory") if memory.refct else None

    def _place(self, memory: Any) -> tuple[int, int, int]:
        known = self._places.get(id(memory))
        if known is None:
            known = memory.size, memory.context.device.id, _address(memory.device_pointer)
            self._places[id(memory)] = known
        return known


def _address(pointer: Any) -> int:
    """Older versions keep a ctypes pointer, newer ones a number."""
    return int(getattr(pointer, "value", pointer) or 0)

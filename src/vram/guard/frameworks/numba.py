"""Numba: device arrays by the allocation that they keep, and allocations that no array keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vram.guard.frameworks.array import Description, kinds, loaded, view_note
from vram.guard.heap.peek import attributes

NAME = "Numba"


def arrays() -> tuple[type, ...]:
    return kinds(loaded("numba.cuda.cudadrv.devicearray"), "DeviceNDArrayBase", "DeviceRecord")


def blocks() -> tuple[type, ...]:
    return kinds(loaded("numba.cuda.cudadrv.driver"), "AutoFreePointer")


def describe(found: Iterable[Any]) -> Iterator[Description | None]:
    whole = blocks()
    for each in found:
        try:
            yield _of_memory(each, "memory", (), None) if issubclass(type(each), whole) else _of_array(each)
        except (ReferenceError, AttributeError):
            yield None  # its context is gone, and the memory with it


def _of_array(array: Any) -> Description | None:
    # Read past any property that a subclass has put in front.
    own = attributes(array) or {}
    data = own.get("gpu_data")
    if data is None:
        return None
    memory = getattr(data, "_mem", data)
    return _of_memory(memory, str(own.get("dtype", "")), own.get("shape") or (), own.get("alloc_size"))


def _of_memory(memory: Any, dtype: str, shape: tuple[int, ...], own: int | None) -> Description | None:
    size = memory.size
    if not size or getattr(memory, "refct", 1) == 0:
        return None
    note = "" if own is None else view_note(own, size)
    return Description(size, memory.context.device.id, _address(memory.device_pointer), dtype, shape, note)


def _address(pointer: Any) -> int:
    """Older versions keep a ctypes pointer, newer ones a number."""
    return int(getattr(pointer, "value", pointer) or 0)

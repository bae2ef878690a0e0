"""CuPy: arrays by the memory that they point into, and memory that no array points into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .array import Description, Spelled, kinds, loaded, view_note

NAME = "CuPy"


def arrays() -> tuple[type, ...]:
    return kinds(loaded("cupy._core.core"), "_ndarray_base") or kinds(loaded("cupy"), "ndarray")


def blocks() -> tuple[type, ...]:
    return kinds(loaded("cupy.cuda.memory"), "MemoryPointer")


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    names = Spelled()
    array: Any = arrays()[0]
    for each in found:
        data = array.data.__get__(each)
        if data is None:  # it is only being made: that is when the GPU runs out of memory
            yield None
            continue
        own = array.nbytes.__get__(each)
        yield _of_memory(data, names[array.dtype.__get__(each)], tuple(array.shape.__get__(each)), own)


def describe_blocks(found: Iterable[Any], _told: set[int]) -> Iterator[Description | None]:
    return (_of_memory(each, "memory", (), None) for each in found)


def _of_memory(data: Any, dtype: str, shape: tuple[int, ...], own: int | None) -> Description | None:
    memory = data.mem
    if not memory.size:
        return None
    note = "" if own is None else view_note(own, memory.size)
    return Description(memory.size, int(memory.device_id), int(memory.ptr), dtype, shape, note)

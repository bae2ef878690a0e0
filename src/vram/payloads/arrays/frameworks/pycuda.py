"""PyCUDA: GPU arrays, and allocations that the program holds without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..heap.peek import attributes
from ..pointers import device_of, extent
from .array import Description, kinds, loaded

NAME = "PyCUDA"


def arrays() -> tuple[type, ...]:
    return kinds(loaded("pycuda.gpuarray"), "GPUArray")


def blocks() -> tuple[type, ...]:
    return kinds(loaded("pycuda._driver"), "DeviceAllocation", "PooledDeviceAllocation")


def describe(found: Iterable[Any], _behind: set[int]) -> Iterator[Description | None]:
    for each in found:
        own: dict[str, Any] = attributes(each) or {}
        data = own.get("gpudata")
        yield None if data is None else _of_block(data, str(own.get("dtype", "")), own.get("shape") or ())


def describe_blocks(found: Iterable[Any], _told: set[int]) -> Iterator[Description | None]:
    return (_of_block(each, "memory", ()) for each in found)


def _of_block(block: Any, dtype: str, shape: tuple[int, ...]) -> Description | None:
    try:
        address = int(block)
    except Exception:  # freed: PyCUDA raises an error class of its own
        return None
    base, nbytes = extent(address)  # PyCUDA does not keep the size
    return Description(nbytes, device_of(address), base, dtype, shape) if nbytes else None

"""PyCUDA: GPU arrays, and allocations that the program holds without one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

from vram.guard.frameworks.array import Description, kinds, loaded
from vram.guard.heap.peek import attributes
from vram.guard.memory import cuda, device_of

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
    base, nbytes = _range(address)
    return Description(nbytes, device_of(address), base, dtype, shape) if nbytes else None


def _range(address: int) -> tuple[int, int]:
    """PyCUDA does not keep the size, the driver does."""
    library, base, size = cuda(), ctypes.c_uint64(), ctypes.c_size_t()
    if library is None:
        return 0, 0
    place = ctypes.c_uint64(address)
    failed = library.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), place)
    return (0, 0) if failed else (base.value, size.value)

"""The few driver calls that the scenes need, by ctypes on libcuda.so.1.

The library is loaded by the first call, not by the import: some parts must never load it.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

RELEASE_THRESHOLD, RESERVED_CURRENT, USED_CURRENT = 4, 5, 7
ATTACH_GLOBAL = 1


class CudaError(Exception):
    """A driver call answered with something else than success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered {code}")
        self.code = code


@functools.cache
def library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def code(name: str, *arguments: Any) -> int:
    """Call the driver and return its answer, whatever it is."""
    return int(getattr(library(), name)(*arguments))


def call(name: str, *arguments: Any) -> None:
    """Call the driver; raise unless it answers success."""
    answer = code(name, *arguments)
    if answer:
        raise CudaError(name, answer)


def init() -> int:
    """Wake the driver up without a context; return the first device."""
    call("cuInit", 0)
    device = c_int()
    call("cuDeviceGet", byref(device), 0)
    return device.value


def context() -> int:
    """Make the first device's primary context current in this thread; return its handle."""
    device = init()
    handle = c_void_p()
    call("cuDevicePrimaryCtxRetain", byref(handle), device)
    call("cuCtxSetCurrent", handle)
    return handle.value or 0


def use(handle: int) -> None:
    """Make a context current in the calling thread."""
    call("cuCtxSetCurrent", c_void_p(handle))


def reset() -> None:
    """Give back everything that the first device's primary context holds."""
    call("cuDevicePrimaryCtxReset_v2", 0)


def free_and_total() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


# ---- plain and managed memory ----


def alloc(nbytes: int) -> int:
    pointer = c_uint64()
    call("cuMemAlloc_v2", byref(pointer), c_size_t(nbytes))
    return pointer.value


def alloc_managed(nbytes: int) -> int:
    pointer = c_uint64()
    call("cuMemAllocManaged", byref(pointer), c_size_t(nbytes), c_uint(ATTACH_GLOBAL))
    return pointer.value


def free(pointer: int) -> None:
    call("cuMemFree_v2", c_uint64(pointer))


def fill(pointer: int, byte: int, nbytes: int) -> None:
    call("cuMemsetD8_v2", c_uint64(pointer), ctypes.c_ubyte(byte), c_size_t(nbytes))
    call("cuCtxSynchronize")


def read(pointer: int, nbytes: int) -> bytes:
    host = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoH_v2", host, c_uint64(pointer), c_size_t(nbytes))
    return host.raw


def write(pointer: int, data: bytes) -> None:
    call("cuMemcpyHtoD_v2", c_uint64(pointer), data, c_size_t(len(data)))


class Buffer:
    """Owns one allocation: whoever drops the last reference frees it."""

    def __init__(self, nbytes: int) -> None:
        self.pointer = alloc(nbytes)

    def __del__(self) -> None:
        free(self.pointer)


# ---- stream-ordered memory, on the default stream and the default pool ----


def pool() -> c_void_p:
    handle = c_void_p()
    call("cuDeviceGetDefaultMemPool", byref(handle), 0)
    return handle


def keep_everything(handle: c_void_p) -> None:
    """Let the pool keep all that is freed into it."""
    call("cuMemPoolSetAttribute", handle, RELEASE_THRESHOLD, byref(c_uint64(2**64 - 1)))


def pool_figure(handle: c_void_p, attribute: int) -> int:
    figure = c_uint64()
    call("cuMemPoolGetAttribute", handle, attribute, byref(figure))
    return figure.value


def trim(handle: c_void_p) -> None:
    call("cuMemPoolTrimTo", handle, c_size_t(0))


def alloc_async(nbytes: int) -> int:
    pointer = c_uint64()
    call("cuMemAllocAsync", byref(pointer), c_size_t(nbytes), None)
    call("cuStreamSynchronize", None)
    return pointer.value


def free_async(pointer: int) -> None:
    call("cuMemFreeAsync", c_uint64(pointer), None)
    call("cuStreamSynchronize", None)

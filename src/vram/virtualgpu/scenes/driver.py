"""The few driver calls that the scenes need, by ctypes on libcuda.so.1.

The library is loaded by the first call, not by the import: some parts must never load it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

POSIX_DESCRIPTOR = 1
DMABUF_DESCRIPTOR = 1
DMABUF_SUPPORTED = 124
RELEASE_THRESHOLD, RESERVED_CURRENT, USED_CURRENT = 4, 5, 7
ATTACH_GLOBAL = 1
LAZY_PEER_ACCESS = 1


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


# ---- sharing between processes: IPC handles, exported allocations, dma-bufs ----


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


def ipc_handle(pointer: int) -> str:
    handle = IpcHandle()
    call("cuIpcGetMemHandle", byref(handle), c_uint64(pointer))
    return bytes(handle).hex()


def ipc_open(text: str) -> int:
    pointer = c_uint64()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(text))
    call("cuIpcOpenMemHandle_v2", byref(pointer), handle, c_uint(LAZY_PEER_ACCESS))
    return pointer.value


def ipc_close(pointer: int) -> None:
    call("cuIpcCloseMemHandle", c_uint64(pointer))


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    _fields_ = (("location", Location), ("flags", c_int))


def pinned_on_device() -> AllocationProperties:
    """Describe exportable memory on the first device."""
    return AllocationProperties(type=1, handle_types=POSIX_DESCRIPTOR, location=Location(1, 0))


def granularity() -> int:
    answer = c_size_t()
    call("cuMemGetAllocationGranularity", byref(answer), byref(pinned_on_device()), 0)
    return answer.value


def create(nbytes: int) -> int:
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(nbytes), byref(pinned_on_device()), c_uint64(0))
    return handle.value


def release(handle: int) -> None:
    call("cuMemRelease", c_uint64(handle))


def export(handle: int) -> int:
    """Return a descriptor that keeps the allocation alive wherever it is passed."""
    descriptor = c_int(-1)
    call("cuMemExportToShareableHandle", byref(descriptor), c_uint64(handle), POSIX_DESCRIPTOR, c_uint64(0))
    return descriptor.value


def import_code(descriptor: int) -> tuple[int, int]:
    """Return the driver's answer to an import, and the handle it made."""
    handle = c_uint64()
    answer = code("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), POSIX_DESCRIPTOR)
    return answer, handle.value


def reserve(nbytes: int) -> int:
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
    return address.value


def unreserve(address: int, nbytes: int) -> None:
    call("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))


def map_code(address: int, nbytes: int, handle: int) -> int:
    return code("cuMemMap", c_uint64(address), c_size_t(nbytes), c_size_t(0), c_uint64(handle), c_uint64(0))


def unmap(address: int, nbytes: int) -> None:
    call("cuMemUnmap", c_uint64(address), c_size_t(nbytes))


def access_code(address: int, nbytes: int) -> int:
    """Ask for read and write access to a mapped range."""
    wish = Access(Location(1, 0), 3)
    return code("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(wish), c_size_t(1))


def dmabuf(pointer: int, nbytes: int) -> int:
    """Return a dma-buf descriptor over a range; both ends must lie on host page borders."""
    descriptor = c_int(-1)
    call(
        "cuMemGetHandleForAddressRange",
        byref(descriptor),
        c_uint64(pointer),
        c_size_t(nbytes),
        DMABUF_DESCRIPTOR,
        c_uint64(0),
    )
    return descriptor.value


# ---- checkpoint ----


class LockArguments(ctypes.Structure):
    _fields_ = (("timeout_ms", c_uint), ("reserved0", c_uint), ("reserved1", c_uint64 * 7))


def checkpoint_state(pid: int) -> int:
    state = c_int(-1)
    call("cuCheckpointProcessGetState", pid, byref(state))
    return state.value


def checkpoint_code(verb: str, pid: int) -> int:
    """Answer to Lock, Checkpoint, Restore or Unlock of *pid*; a lock waits ten seconds at most."""
    arguments = byref(LockArguments(timeout_ms=10_000)) if verb == "Lock" else None
    return code(f"cuCheckpointProcess{verb}", pid, arguments)


def device_descriptors() -> list[int]:
    """Descriptors of this process on the driver's device files."""
    mine = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if "/dev/nvidia" in target:
            mine.append(int(name))
    return mine

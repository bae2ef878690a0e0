"""Driver calls by which processes share memory: IPC handles, exported allocations, dma-bufs."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from driver import call, code

POSIX_DESCRIPTOR = 1
DMABUF_DESCRIPTOR = 1
LAZY_PEER_ACCESS = 1


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

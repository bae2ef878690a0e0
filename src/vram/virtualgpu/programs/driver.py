"""The few driver calls that demo programs and the lab's workers need, by ctypes on libcuda.so.1.

The library is loaded by the first call, not by the import: some processes must never load it.
A function that ends in ``_code`` returns the driver's answer; the others raise unless it is success.
Programs that import this are started by the hundred, so it imports little: typing and glob would take
as long as half of Python's own start.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TypeVar

    Place = TypeVar("Place", c_int, c_size_t, c_uint64, c_void_p)

RELEASE_THRESHOLD, RESERVED_CURRENT, USED_CURRENT = 4, 5, 7
ATTACH_GLOBAL = 1
NON_BLOCKING = 1
POSIX_DESCRIPTOR = 1
DMABUF_DESCRIPTOR = 1
LAZY_PEER_ACCESS = 1
MULTIPROCESSORS = 1
DEFAULT_STREAM = 1

OLD_BYTE = 0xA5
CHUNK = 64 * 1024**2
"""Copies from the device go through the host in pieces of this size."""

HOST_FUNCTION = ctypes.CFUNCTYPE(None, c_void_p)


class CudaError(Exception):
    """A driver call answered with something other than success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered {code}")
        self.call, self.code = call, code


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


def result(kind: type[Place], name: str, *arguments: Any) -> Place:
    """Call the driver with a place for its result as the first argument; return what it wrote there."""
    place = kind()
    call(name, byref(place), *arguments)
    return place


def init() -> int:
    """Initialise the driver without a context; return the first device."""
    call("cuInit", 0)
    return result(c_int, "cuDeviceGet", 0).value


def context() -> int:
    """Make the first device's primary context current in this thread; return its handle."""
    handle = result(c_void_p, "cuDevicePrimaryCtxRetain", init())
    call("cuCtxSetCurrent", handle)
    return handle.value or 0


def use(handle: int) -> None:
    """Make a context current in the calling thread."""
    call("cuCtxSetCurrent", c_void_p(handle))


def reset() -> None:
    """Release everything that the first device's primary context holds, as cudaDeviceReset does."""
    call("cuDevicePrimaryCtxReset_v2", 0)


def reset_code() -> int:
    return code("cuDevicePrimaryCtxReset_v2", 0)


def new_context() -> int:
    """Make a second context, current in this thread; the oldest form of the call takes no extras."""
    return result(c_void_p, "cuCtxCreate_v2", c_uint(0), 0).value or 0


def destroy_context(handle: int) -> None:
    call("cuCtxDestroy_v2", c_void_p(handle))


class DeviceResource(ctypes.Structure):
    """A share of a GPU's multiprocessors, as large as the driver's own structure."""

    _fields_ = (("bytes", ctypes.c_ubyte * 512),)


def green_context() -> int:
    """Make a green context, current in this thread; return what destroys it."""
    whole, part, groups = DeviceResource(), DeviceResource(), c_uint(1)
    call("cuDeviceGetDevResource", 0, byref(whole), MULTIPROCESSORS)
    call("cuDevSmResourceSplitByCount", byref(part), byref(groups), byref(whole), None, c_uint(0), c_uint(16))
    description = result(c_void_p, "cuDevResourceGenerateDesc", byref(part), c_uint(1))
    green = result(c_void_p, "cuGreenCtxCreate", description, 0, c_uint(DEFAULT_STREAM))
    call("cuCtxSetCurrent", result(c_void_p, "cuCtxFromGreenCtx", green))
    return green.value or 0


def destroy_green_context(green: int) -> None:
    call("cuGreenCtxDestroy", c_void_p(green))


def new_stream() -> c_void_p:
    return result(c_void_p, "cuStreamCreate", c_uint(NON_BLOCKING))


def close_device_files() -> int:
    """Close this process's descriptors of the driver's device files; return how many there were."""
    descriptors = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if "/dev/nvidia" in os.readlink(f"/proc/self/fd/{name}"):
                descriptors.append(int(name))
        except FileNotFoundError:
            continue
    for descriptor in descriptors:
        os.close(descriptor)
    return len(descriptors)


def free_and_total() -> tuple[int, int]:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value, total.value


# ---- plain and managed memory ----


def alloc(nbytes: int) -> int:
    return result(c_uint64, "cuMemAlloc_v2", c_size_t(nbytes)).value


def alloc_code(nbytes: int) -> int:
    return code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(nbytes))


def alloc_managed(nbytes: int) -> int:
    return result(c_uint64, "cuMemAllocManaged", c_size_t(nbytes), c_uint(ATTACH_GLOBAL)).value


def alloc_managed_code(nbytes: int) -> int:
    """Return the driver's answer. What it gives is freed again, untouched."""
    pointer = c_uint64()
    answer = code("cuMemAllocManaged", byref(pointer), c_size_t(nbytes), c_uint(ATTACH_GLOBAL))
    if not answer:
        free(pointer.value)
    return answer


def prefetch(pointer: int, nbytes: int, device: int) -> None:
    """Move managed memory to a device, or with -1 to the host, and wait until it is there."""
    call("cuMemPrefetchAsync", c_uint64(pointer), c_size_t(nbytes), c_int(device), None)
    call("cuCtxSynchronize")


def free(pointer: int) -> None:
    call("cuMemFree_v2", c_uint64(pointer))


def free_code(pointer: int) -> int:
    return code("cuMemFree_v2", c_uint64(pointer))


def fill(pointer: int, byte: int, nbytes: int) -> None:
    call("cuMemsetD8_v2", c_uint64(pointer), ctypes.c_ubyte(byte), c_size_t(nbytes))
    call("cuCtxSynchronize")


def read(pointer: int, nbytes: int) -> bytes:
    host = ctypes.create_string_buffer(nbytes)
    call("cuMemcpyDtoH_v2", host, c_uint64(pointer), c_size_t(nbytes))
    return host.raw


def write(pointer: int, data: bytes) -> None:
    call("cuMemcpyHtoD_v2", c_uint64(pointer), data, c_size_t(len(data)))


def count_nonzero(pointer: int, nbytes: int) -> int:
    chunks = (read(pointer + at, min(CHUNK, nbytes - at)) for at in range(0, nbytes, CHUNK))
    return sum(len(chunk) - chunk.count(0) for chunk in chunks)


class AllocationOwner:
    """Owns one allocation: dropping the last reference frees it."""

    def __init__(self, nbytes: int) -> None:
        self.pointer = alloc(nbytes)

    def __del__(self) -> None:
        free(self.pointer)


# ---- stream-ordered memory, on the default stream and the default pool ----


def pool() -> c_void_p:
    return result(c_void_p, "cuDeviceGetDefaultMemPool", 0)


def keep_everything(handle: c_void_p) -> None:
    """Let the pool keep all that is freed into it."""
    call("cuMemPoolSetAttribute", handle, RELEASE_THRESHOLD, byref(c_uint64(2**64 - 1)))


def pool_figure(handle: c_void_p, attribute: int) -> int:
    figure = c_uint64()
    call("cuMemPoolGetAttribute", handle, attribute, byref(figure))
    return figure.value


def trim(handle: c_void_p) -> None:
    call("cuMemPoolTrimTo", handle, c_size_t(0))


class MemLocation(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class PoolProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", MemLocation),
        ("security", c_void_p),
        ("max_nbytes", c_size_t),
        ("reserved", ctypes.c_ubyte * 56),
    )


def new_pool() -> c_void_p:
    """Make a pool on the first device."""
    return result(c_void_p, "cuMemPoolCreate", byref(PoolProperties(type=1, location=MemLocation(1, 0))))


def alloc_async(nbytes: int) -> int:
    pointer = result(c_uint64, "cuMemAllocAsync", c_size_t(nbytes), None)
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
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(text))
    return result(c_uint64, "cuIpcOpenMemHandle_v2", handle, c_uint(LAZY_PEER_ACCESS)).value


def ipc_close(pointer: int) -> None:
    call("cuIpcCloseMemHandle", c_uint64(pointer))


class MemAllocationProperties(ctypes.Structure):
    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", MemLocation),
        ("metadata", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class MemAccess(ctypes.Structure):
    _fields_ = (("location", MemLocation), ("flags", c_int))


def pinned_on_device() -> MemAllocationProperties:
    """Describe exportable memory on the first device."""
    return MemAllocationProperties(type=1, handle_types=POSIX_DESCRIPTOR, location=MemLocation(1, 0))


def granularity() -> int:
    return result(c_size_t, "cuMemGetAllocationGranularity", byref(pinned_on_device()), 0).value


def create(nbytes: int) -> int:
    request = byref(pinned_on_device())
    return result(c_uint64, "cuMemCreate", c_size_t(nbytes), request, c_uint64(0)).value


def create_code(nbytes: int) -> int:
    request = byref(pinned_on_device())
    return code("cuMemCreate", byref(c_uint64()), c_size_t(nbytes), request, c_uint64(0))


def release(handle: int) -> None:
    call("cuMemRelease", c_uint64(handle))


def export(handle: int) -> int:
    """Return a descriptor that keeps the allocation alive wherever it is passed."""
    arguments = (c_uint64(handle), POSIX_DESCRIPTOR, c_uint64(0))
    return result(c_int, "cuMemExportToShareableHandle", *arguments).value


def import_code(descriptor: int) -> tuple[int, int]:
    """Return the driver's answer to an import, and the handle it made."""
    handle = c_uint64()
    answer = code("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), POSIX_DESCRIPTOR)
    return answer, handle.value


def reserve(nbytes: int) -> int:
    arguments = (c_size_t(nbytes), c_size_t(0), c_uint64(0), c_uint64(0))
    return result(c_uint64, "cuMemAddressReserve", *arguments).value


def unreserve(address: int, nbytes: int) -> None:
    call("cuMemAddressFree", c_uint64(address), c_size_t(nbytes))


def map_code(address: int, nbytes: int, handle: int) -> int:
    return code("cuMemMap", c_uint64(address), c_size_t(nbytes), c_size_t(0), c_uint64(handle), c_uint64(0))


def unmap(address: int, nbytes: int) -> None:
    call("cuMemUnmap", c_uint64(address), c_size_t(nbytes))


def access_code(address: int, nbytes: int) -> int:
    """Ask for read and write access to a mapped range."""
    request = MemAccess(MemLocation(1, 0), 3)
    return code("cuMemSetAccess", c_uint64(address), c_size_t(nbytes), byref(request), c_size_t(1))


def dmabuf(pointer: int, nbytes: int) -> int:
    """Return a dma-buf descriptor over a range; both ends must lie on host page borders."""
    arguments = (c_uint64(pointer), c_size_t(nbytes), DMABUF_DESCRIPTOR, c_uint64(0))
    return result(c_int, "cuMemGetHandleForAddressRange", *arguments).value


# ---- the runtime library; under a virtual GPU only its own: a vendor's runtime needs a vendor's driver ----

RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
IN_PACKAGES = ("nvidia/cu13/lib", "nvidia/cuda_runtime/lib", "torch/lib")
"""NVIDIA's packages for CUDA 13 and 12, and PyTorch's own copy."""
IN_TOOLKITS = ("lib64", "targets/*/lib")


@functools.cache
def runtime_library() -> ctypes.CDLL | None:
    """The first runtime library that can be loaded; None where there is none."""
    for candidate in _runtime_paths():
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    return None


def _runtime_paths() -> Iterator[str]:
    virtual = os.environ.get("VRAM_VIRTUAL_GPU")
    if virtual:
        yield from (os.path.join(virtual, "lib", name) for name in RUNTIMES)
        return
    yield from RUNTIMES
    from glob import glob

    toolkits = (os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda")
    folders = [os.path.join(root, each) for root in sys.path if root for each in IN_PACKAGES]
    folders += [os.path.join(root, each) for root in toolkits if root for each in IN_TOOLKITS]
    for folder in folders:
        for name in RUNTIMES:
            yield from sorted(glob(os.path.join(folder, f"{name}*")))


def runtime_code(name: str, *arguments: object) -> int | None:
    """Call the runtime and return its answer, whatever it is; None without a runtime."""
    found = runtime_library()
    return None if found is None else int(getattr(found, name)(*arguments))

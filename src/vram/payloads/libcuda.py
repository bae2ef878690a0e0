"""libcuda, the CUDA driver library: the one place that loads it and knows the types of its calls.

Loading it takes no GPU memory; ``cuInit`` takes 3.25 MiB while the process lives (H200, driver 580.159),
and a context much more. Neither is done here.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    Library = TypeVar("Library", bound=ctypes.CDLL)

NAME = "libcuda.so.1"
IN_MAPS = b"/libcuda.so"
"""What /proc/PID/maps shows of it, whichever version is loaded."""

# Windows' driver brings its Linux libraries along and mounts them here. The loader's
# configuration that names the folder is the distribution's, and some have lost it.
WSL_FOLDER = "/usr/lib/wsl/lib"

_POINTER, _SIZE, _HANDLE, _OUT = c_uint64, c_size_t, c_void_p, c_void_p

# Of every call that vram makes. A call that is not here is made with ctypes' own guesses: int.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (c_int, _OUT),
    "cuGetErrorString": (c_int, _OUT),
    # devices
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetCount": (_OUT,),
    "cuDeviceGetName": (_OUT, c_int, c_int),
    "cuDeviceGetUuid_v2": (_OUT, c_int),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int),
    "cuDeviceTotalMem_v2": (_OUT, c_int),
    # contexts
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuDevicePrimaryCtxGetState": (c_int, _OUT, _OUT),
    "cuCtxGetCurrent": (_OUT,),
    "cuCtxSetCurrent": (_HANDLE,),
    "cuCtxGetDevice": (_OUT,),
    "cuCtxPushCurrent_v2": (_HANDLE,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuCtxSynchronize": (),
    # streams
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamIsCapturing": (_HANDLE, _OUT),
    "cuThreadExchangeStreamCaptureMode": (_OUT,),
    # memory
    "cuPointerGetAttribute": (_OUT, c_int, _POINTER),
    "cuMemGetAddressRange_v2": (_OUT, _OUT, _POINTER),
    "cuMemGetInfo_v2": (_OUT, _OUT),
    "cuMemAlloc_v2": (_OUT, _SIZE),
    "cuMemAllocPitch_v2": (_OUT, _OUT, _SIZE, _SIZE, c_uint),
    "cuMemAllocManaged": (_OUT, _SIZE, c_uint),
    "cuMemFree_v2": (_POINTER,),
    "cuMemHostAlloc": (_OUT, _SIZE, c_uint),
    "cuMemHostGetDevicePointer_v2": (_OUT, c_void_p, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemAllocAsync": (_OUT, _SIZE, _HANDLE),
    "cuMemFreeAsync": (_POINTER, _HANDLE),
    "cuMemsetD8_v2": (_POINTER, c_ubyte, _SIZE),
    "cuMemsetD8Async": (_POINTER, c_ubyte, _SIZE, _HANDLE),
    "cuMemsetD2D8_v2": (_POINTER, _SIZE, c_ubyte, _SIZE, _SIZE),
    "cuMemcpyHtoD_v2": (_POINTER, c_void_p, _SIZE),
    "cuMemcpyDtoH_v2": (c_void_p, _POINTER, _SIZE),
    # pools, and the memory of CUDA graphs
    "cuDeviceGetDefaultMemPool": (_OUT, c_int),
    "cuDeviceGetMemPool": (_OUT, c_int),
    "cuMemPoolCreate": (_OUT, c_void_p),
    "cuMemPoolDestroy": (_HANDLE,),
    "cuMemPoolGetAttribute": (_HANDLE, c_int, _OUT),
    "cuMemPoolSetAttribute": (_HANDLE, c_int, c_void_p),
    "cuMemPoolTrimTo": (_HANDLE, _SIZE),
    "cuMemAllocFromPoolAsync": (_OUT, _SIZE, _HANDLE, _HANDLE),
    "cuDeviceGetGraphMemAttribute": (c_int, c_int, _OUT),
    "cuDeviceGraphMemTrim": (c_int,),
    # virtual memory and exported allocations
    "cuMemImportFromShareableHandle": (_OUT, c_void_p, c_int),
    "cuMemGetAllocationPropertiesFromHandle": (_OUT, _POINTER),
    "cuMemGetAllocationGranularity": (_OUT, c_void_p, c_int),
    "cuMemAddressReserve": (_OUT, _SIZE, _SIZE, _POINTER, c_ulonglong),
    "cuMemAddressFree": (_POINTER, _SIZE),
    "cuMemMap": (_POINTER, _SIZE, _SIZE, c_uint64, c_ulonglong),
    "cuMemUnmap": (_POINTER, _SIZE),
    "cuMemRelease": (c_uint64,),
    # checkpoints, since driver 570
    "cuCheckpointProcessGetState": (c_int, _OUT),
    "cuCheckpointProcessLock": (c_int, c_void_p),
    "cuCheckpointProcessCheckpoint": (c_int, c_void_p),
    "cuCheckpointProcessRestore": (c_int, c_void_p),
    "cuCheckpointProcessUnlock": (c_int, c_void_p),
}
CHECKPOINT_CALLS = tuple(name for name in SIGNATURES if name.startswith("cuCheckpointProcess"))


class Libcuda(ctypes.CDLL):
    """The library with typed calls: a handle of our own, which changes nothing for others in the process."""

    def __getattr__(self, name: str) -> Any:
        function = super().__getattr__(name)
        types = SIGNATURES.get(name)
        if types is not None:
            function.argtypes = types
        return function


def load() -> Libcuda:
    """The library; raises OSError where it is not installed."""
    return open_library(NAME, Libcuda)


def loaded() -> Libcuda | None:
    """The library where this process has loaded it already, else None: asking never loads it."""
    try:
        return Libcuda(NAME, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None


def untyped(library: Libcuda) -> ctypes.CDLL:
    """The same library without declared types: its calls take ready C values, and a third less time."""
    return ctypes.CDLL(library._name)


def open_library(name: str, kind: type[Library], folder: str = WSL_FOLDER) -> Library:
    """A library of the driver: by its name, else from *folder*. Raises the OSError of the ordinary search."""
    try:
        return kind(name)
    except OSError:
        path = os.path.join(folder, name)
        if not os.path.exists(path):
            raise
        return kind(path)


def count_devices(library: Libcuda | None) -> int:
    """How many devices this process sees; none where it has not started CUDA."""
    count = c_int()
    return 0 if library is None or library.cuDeviceGetCount(byref(count)) else count.value


def read_uuid(library: Libcuda | None, ordinal: int) -> str | None:
    """What the whole machine calls a device: each process may number its GPUs differently."""
    raw = (ctypes.c_char * 16)()
    ask = getattr(library, "cuDeviceGetUuid_v2", None)  # old drivers lack it
    return None if ask is None or ask(byref(raw), c_int(ordinal)) else device_uuid(bytes(raw))


def device_uuid(raw: bytes) -> str:
    """The 16 bytes of ``cuDeviceGetUuid`` as NVML and nvidia-smi write them."""
    digits = raw.hex()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

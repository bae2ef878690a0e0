"""What programs of the recorder's tests begin with: the driver, a context, the recorder's functions."""

import ctypes
import os
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def check(result: int) -> None:
    assert result == 0, result


def context(device: int = 0) -> ctypes.c_void_p:
    """CUDA started, the device's primary context current."""
    made = ctypes.c_void_p()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(made), device))
    check(cuda.cuCtxSetCurrent(made))
    return made


def alloc(nbytes: int) -> int:
    address = ctypes.c_uint64()
    check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)))
    return address.value


def free(address: int) -> None:
    check(cuda.cuMemFree_v2(ctypes.c_uint64(address)))


def tracer() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["TRACER"])
    for name in ("vram_tracer_error", "vram_tracer_file"):
        getattr(library, name).restype = ctypes.c_char_p
    library.vram_tracer_blob.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    library.vram_tracer_before.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p]
    block = [ctypes.c_int, ctypes.c_int, ctypes.c_uint64]
    library.vram_tracer_block_alloc.argtypes = [*block, ctypes.c_uint64, ctypes.c_uint64]
    library.vram_tracer_block_free.argtypes = block
    return library


def start(library: ctypes.CDLL, path: str, *more: str) -> int:
    lines = "\n".join([f"output={path}", *more])
    return library.vram_tracer_start(lines.encode())


def say(*what: object) -> None:
    print(*what)
    sys.stdout.flush()

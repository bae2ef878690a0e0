"""A program that holds GPU memory until its stdin ends: plain ctypes, knows nothing of vram.

Arguments: how many bytes, and on which GPU. It says its pid when it holds them. With a third
argument "fork" it leaves at once, and a forked child lives on and says its own pid instead.
"""

from __future__ import annotations

import ctypes
import os
import sys


def check(code: int) -> None:
    if code:
        raise SystemExit(f"the driver answered {code}")


def hold(nbytes: int, gpu: int) -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, pointer = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), gpu))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    check(cuda.cuCtxSetCurrent(context))
    if nbytes:
        check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)))


def main() -> None:
    hold(int(sys.argv[1]), int(sys.argv[2]))
    if sys.argv[3:] == ["fork"] and os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()

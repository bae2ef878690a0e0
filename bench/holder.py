"""Holds memory on every GPU until its standard input closes: somebody for the tools to find."""

from __future__ import annotations

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def must(code: int) -> None:
    if code:
        sys.exit(f"the driver answered {code}")


def main(nbytes: int) -> None:
    count = ctypes.c_int()
    must(cuda.cuInit(0))
    must(cuda.cuDeviceGetCount(ctypes.byref(count)))
    for ordinal in range(count.value):
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal))
        must(cuda.cuCtxSetCurrent(context))
        must(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(nbytes)))
    print("ready", flush=True)
    sys.stdin.read()


main(int(sys.argv[1]))

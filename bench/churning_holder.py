"""Allocates and frees on the first GPU until its standard input closes: figures that change all the time."""

from __future__ import annotations

import ctypes
import select
import sys

NBYTES = 64 * 1024**2
EVERY_S = 0.3

cuda = ctypes.CDLL("libcuda.so.1")


def must(code: int) -> None:
    if code:
        sys.exit(f"the driver answered {code}")


def main() -> None:
    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))
    print("ready", flush=True)
    held: list[ctypes.c_uint64] = []
    while not select.select([sys.stdin], [], [], EVERY_S)[0]:
        if len(held) == 8:
            while held:
                must(cuda.cuMemFree_v2(held.pop()))
        held.append(ctypes.c_uint64())
        must(cuda.cuMemAlloc_v2(ctypes.byref(held[-1]), ctypes.c_size_t(NBYTES)))


main()

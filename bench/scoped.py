"""What a scope and a recorder cost, timed inside one process; prints the fastest turns in seconds.

python bench/scoped.py TURNS

A scope around nothing before the driver is loaded; one with a context; then a piece of work that
allocates, frees, raises and catches, without ``vram.on_oom()`` and with it, in turns.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

import vram

COUNT = 500
NBYTES = 4 * 1024**2


def timed(action: Callable[[], None], count: int = COUNT) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        action()
    return (time.perf_counter() - begin) / count


def around_nothing() -> None:
    with vram.scope("nothing"):
        pass


def context() -> Any:
    cuda = ctypes.CDLL("libcuda.so.1")
    handle = c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(byref(handle), c_int(0)) == 0
    assert cuda.cuCtxSetCurrent(handle) == 0
    return cuda


def work(cuda: Any) -> None:
    pointer = c_uint64()
    cuda.cuMemAlloc_v2(byref(pointer), c_size_t(NBYTES))
    cuda.cuMemFree_v2(pointer)
    try:
        raise ValueError("an ordinary one")
    except ValueError:
        pass


def main(turns: int) -> None:
    around_nothing()
    bare = [timed(around_nothing) for _ in range(turns)]
    cuda = context()
    around_nothing()
    awake = [timed(around_nothing, COUNT // 5) for _ in range(turns)]
    without, recorded = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(turns):
            without.append(timed(lambda: work(cuda)))
            with vram.on_oom(folder):
                recorded.append(timed(lambda: work(cuda)))
    print(*map(min, (bare, awake, without, recorded)))


main(int(sys.argv[1]))

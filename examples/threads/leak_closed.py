"""The same five threads, each freeing what it allocated; one of them fails half-way and leaks.

    vram virtual -- python examples/threads/leak_closed.py

An explicit free is right until an exception jumps over it. ``vram.Thread`` settles what a thread
leaves behind when it ends, however it ends: garbage is collected, frames are cleared, caches released. A
raw pointer that nobody freed cannot be freed by anybody else: it is told, with its size.
"""

from __future__ import annotations

import threading

from cuda.bindings import driver

import vram

MIB = 1024**2


def checked(answer: tuple[object, ...]) -> object:
    code, *values = answer
    assert code == driver.CUresult.CUDA_SUCCESS, code
    return values[0] if values else None


def careless(context: object) -> None:
    checked(driver.cuCtxSetCurrent(context))
    pointer = checked(driver.cuMemAlloc(4 * MIB))
    raise ValueError("before the free")
    checked(driver.cuMemFree(pointer))


def careful(context: object) -> None:
    checked(driver.cuCtxSetCurrent(context))
    pointer = checked(driver.cuMemAlloc(4 * MIB))
    try:
        pass  # the work
    finally:
        checked(driver.cuMemFree(pointer))


def main() -> None:
    checked(driver.cuInit(0))
    context = checked(driver.cuDevicePrimaryCtxRetain(0))
    checked(driver.cuCtxSetCurrent(context))
    threading.excepthook = lambda words: print(f"a thread ended by {words.exc_value!r}")
    for work in (careful, careful, careless, careful, careful):
        thread = vram.Thread(target=work, args=(context,), name=work.__name__, leak="report")
        thread.start()
        thread.join()
        kept = thread.leak.nbytes // MIB if thread.leak else 0
        print(f"{thread.name}: {kept} MiB stay in use")


main()

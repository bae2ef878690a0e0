"""Five threads allocate, end, and free nothing: the memory stays, because it is the process's.

    vram virtual -- python examples/threads/leak_shown.py

A raw pointer is a number. When the thread's variables go, the number goes, and the driver is
told nothing. The process keeps the memory until it ends; `vram.scope` says so while it runs.
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


def worker(context: object, together: threading.Barrier) -> None:
    checked(driver.cuCtxSetCurrent(context))
    checked(driver.cuMemAlloc(4 * MIB))  # and nobody calls cuMemFree
    together.wait()


def main() -> None:
    checked(driver.cuInit(0))
    context = checked(driver.cuDevicePrimaryCtxRetain(0))
    checked(driver.cuCtxSetCurrent(context))
    together = threading.Barrier(5)
    with vram.scope("five threads", leak="report") as s:
        threads = [threading.Thread(target=worker, args=(context, together)) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"the threads have ended: {s.gained() // MIB} MiB more in use than before")
    assert s.leak is not None
    print(f"scope {s.name!r} kept {s.leak.nbytes // MIB} MiB {s.leak.gains[0].where}")


main()

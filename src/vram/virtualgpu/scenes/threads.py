"""Four threads allocate through raw pointers and end; nobody is left who could free them."""

from __future__ import annotations

import threading

import driver
import stage

THREADS = 4


def leak(context: int, nbytes: int) -> None:
    driver.use(context)
    driver.alloc(nbytes)


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    context = driver.context()
    threads = [threading.Thread(target=leak, args=(context, nbytes)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stage.ready("threads ended", nbytes=THREADS * nbytes, threads_left=threading.active_count() - 1)
    stage.wait()
    driver.reset()
    stage.ready("reset")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

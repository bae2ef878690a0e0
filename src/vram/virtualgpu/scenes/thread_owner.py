"""Four threads allocate through owner objects and end; the objects free what they own."""

from __future__ import annotations

import threading

import driver
import stage

THREADS = 4


def own(context: int, nbytes: int, all_allocated: threading.Barrier) -> None:
    driver.use(context)
    buffer = driver.Buffer(nbytes)
    all_allocated.wait()
    all_allocated.wait()
    del buffer


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    context = driver.context()
    barrier = threading.Barrier(THREADS + 1)
    part = (context, nbytes, barrier)
    threads = [threading.Thread(target=own, args=part, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    stage.ready("threads hold", nbytes=THREADS * nbytes)
    stage.wait()
    barrier.wait()
    for thread in threads:
        thread.join()
    stage.ready("threads ended")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

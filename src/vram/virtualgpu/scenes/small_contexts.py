"""Many processes hold a context each and next to nothing in it."""

from __future__ import annotations

import driver
import stage

PROCESSES = 4


def idle(nbytes: int) -> stage.Play:
    driver.context()
    driver.alloc(nbytes)
    yield None


def scene() -> None:
    nbytes = stage.size_argument(2 * stage.MIB)
    workers = [stage.Worker(idle, nbytes) for _ in range(PROCESSES)]
    pids = {f"worker{number}": worker.pid for number, worker in enumerate(workers)}
    stage.ready("idle", pids=pids, nbytes=PROCESSES * nbytes)
    stage.wait()
    for worker in workers:
        worker.kill()
    stage.ready("ended", pids=pids)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

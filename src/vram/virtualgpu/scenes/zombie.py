"""A worker is killed and nobody reaps it."""

from __future__ import annotations

import os
import signal

import driver
import stage


def allocate(nbytes: int) -> stage.Play:
    driver.context()
    driver.alloc(nbytes)
    yield None


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    worker = stage.Worker(allocate, nbytes)
    pids = {"parent": os.getpid(), "worker": worker.pid}
    stage.ready("allocated", pids=pids, nbytes=nbytes)
    stage.wait()
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    stage.ready("zombie", pids=pids)
    stage.wait()
    worker.reap()
    stage.ready("reaped", pids=pids)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

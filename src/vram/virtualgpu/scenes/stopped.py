"""A worker is stopped, as Ctrl-Z does, and goes on later."""

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
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    stage.ready("stopped", pids=pids, nbytes=nbytes)
    stage.wait()
    os.kill(worker.pid, signal.SIGCONT)
    os.waitid(os.P_PID, worker.pid, os.WCONTINUED)
    stage.ready("continued", pids=pids, nbytes=nbytes)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

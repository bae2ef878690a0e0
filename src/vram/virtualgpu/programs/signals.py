"""A worker with memory is stopped as Ctrl-Z does, or killed and not reaped."""

from __future__ import annotations

import os
import signal

import driver
import protocol


def stopped() -> None:
    """The worker is stopped, and continues later."""
    worker, pids, nbytes = _worker()
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    protocol.stage("stopped", pids=pids, nbytes=nbytes)
    os.kill(worker.pid, signal.SIGCONT)
    os.waitid(os.P_PID, worker.pid, os.WCONTINUED)
    protocol.stage("continued", pids=pids, nbytes=nbytes)


def zombie() -> None:
    """The worker is killed, and reaped one stage later."""
    worker, pids, nbytes = _worker()
    protocol.stage("allocated", pids=pids, nbytes=nbytes)
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    protocol.stage("zombie", pids=pids)
    worker.reap()
    protocol.stage("reaped", pids=pids)


def _worker() -> tuple[protocol.ForkedWorker, dict[str, int], int]:
    nbytes = protocol.size_argument(4 * protocol.GIB)
    worker = protocol.ForkedWorker(_hold, nbytes)
    return worker, {"parent": os.getpid(), "worker": worker.pid}, nbytes


def _hold(nbytes: int) -> protocol.Turns:
    driver.context()
    driver.alloc(nbytes)
    yield None


if __name__ == "__main__":
    protocol.main(stopped, zombie)

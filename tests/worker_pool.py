"""A pool of Python's multiprocessing on a virtual GPU: one job, which is orphaned when its head is killed.

As a program: the head. It starts a worker for each of the arguments, which are "sleep" or "spin", and prints
the pids of all of them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parents[1] / "src/vram/virtualgpu/programs"
# Whoever is left by a test that was killed ends by itself.
_MAX_S = 600


class WorkerPool:
    """The head's and the workers' pids; each of them is held by a pidfd, and ends with the context."""

    def __init__(self, environment: Mapping[str, str], *does: str) -> None:
        self._head = subprocess.Popen(
            [sys.executable, __file__, *does],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._head.stdout is not None
        self.head, *self.workers = map(int, self._head.stdout.readline().split())
        self._head.stdout.close()
        self._pidfds = [os.pidfd_open(pid) for pid in self.workers]

    def kill_head(self) -> None:
        """Come back when it has ended: the workers have another parent then."""
        self._head.kill()
        self._head.wait()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self.kill_head()


def _work(does: str, ready: Any) -> None:
    sys.path.insert(0, str(PROGRAMS))
    import driver

    signal.alarm(_MAX_S)
    driver.context()
    driver.alloc(1 << 30)
    ready.put(os.getpid())
    while does == "spin":
        pass
    time.sleep(_MAX_S)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    signal.alarm(_MAX_S)
    queue: Any = multiprocessing.Queue()
    for each in sys.argv[1:]:
        multiprocessing.Process(target=_work, args=(each, queue)).start()
    print(os.getpid(), *(queue.get() for _ in sys.argv[1:]), flush=True)
    time.sleep(_MAX_S)

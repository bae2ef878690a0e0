"""A process whose first thread has ended while another lives on: the kernel calls it a zombie."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_EXIT_OF_ONE_THREAD = {"x86_64": 60, "aarch64": 93}


@contextmanager
def leaderless(live_on: Callable[[], object] = lambda: None) -> Iterator[int]:
    """The pid of such a process; *live_on* is what its other thread does first."""
    pid = os.fork()
    if pid == 0:
        _leave(live_on)
    try:
        wait_for(pid)
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def wait_for(pid: int) -> None:
    """Come back once the first thread of *pid* has ended."""
    while not _is_zombie(pid):
        os.sched_yield()


def _leave(live_on: Callable[[], object]) -> None:
    done = threading.Event()

    def other() -> None:
        kept = live_on()
        done.set()
        signal.pause()
        del kept

    try:
        threading.Thread(target=other).start()
        done.wait(60)
    finally:
        ctypes.CDLL(None).syscall(_EXIT_OF_ONE_THREAD[os.uname().machine], 0)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


if __name__ == "__main__":
    # Started as a program: the words are Python for the other thread to run.
    _leave(lambda: exec(sys.argv[1]))

"""A program that starts workers by multiprocessing's spawn, reports their pids, and waits to be killed.

Each argument is a worker, and the MiB that it allocates; a negative one allocates nothing, and
starts another that does. Such heads are reported last. On SIGUSR1 a worker allocates 1 GiB, from SIGUSR2
to SIGHUP a thread of it computes while its first one waits. Standard library only, and vram's demo driver.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

ALLOCATE, WORK, REST = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP


def work(at: int, mib: int, reports: Any) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, (ALLOCATE, WORK, REST))
    if mib < 0:
        multiprocessing.get_context("spawn").Process(target=work, args=(at, -mib, reports)).start()
    else:
        allocate(mib << 20)
    reports.put((at + 1000 * (mib < 0), os.getpid()))
    reports.close()
    reports.join_thread()
    rests = threading.Event()
    while True:
        number = signal.sigwait((ALLOCATE, WORK, REST))
        if number == ALLOCATE:
            allocate(1 << 30)
        elif number == WORK:
            rests.clear()
            threading.Thread(target=spin, args=(rests,), daemon=True).start()
        else:
            rests.set()


def allocate(nbytes: int) -> None:
    if nbytes:
        sys.path.insert(0, os.environ["PROGRAMS"])
        import driver  # type: ignore[import-not-found]

        driver.context()
        driver.alloc(nbytes)


def spin(rests: threading.Event) -> None:
    while not rests.is_set():
        sum(range(1000))


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    reports = spawn.Queue()
    sizes = [int(word) for word in sys.argv[1:]]
    count = len(sizes) + sum(mib < 0 for mib in sizes)
    for at, mib in enumerate(sizes):
        spawn.Process(target=work, args=(at, mib, reports)).start()
    print(json.dumps([pid for _, pid in sorted(reports.get() for _ in range(count))]), flush=True)
    signal.pause()

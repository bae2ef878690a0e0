"""Allocates $GIB GiB, 2 by default, forks $CHILDREN children, 2 by default, and ends: they hold its memory.

The last child prints the pids, its parent's first, when the parent has ended.
"""

import os
import signal

import driver
import protocol

from tests.patience import until

driver.context()
driver.alloc(int(os.environ.get("GIB", "2")) * protocol.GIB)
owner, children = os.getpid(), int(os.environ.get("CHILDREN", "2"))
pids = [owner]
for number in range(1, children + 1):
    pid = os.fork()
    if pid == 0:
        until(lambda: os.getppid() != owner)
        if number == children:
            print(*pids, os.getpid(), flush=True)
        while True:
            signal.pause()
    pids.append(pid)
os._exit(0)

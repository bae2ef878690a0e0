"""A process allocates and forks: the child inherits the open device files."""

from __future__ import annotations

import os

import driver
import protocol


def orphan() -> None:
    """The child sleeps on, whatever becomes of its parent."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    child = os.fork()
    if child == 0:
        protocol.sleep_until_closed()
        os._exit(0)
    protocol.ready("forked", pids={"parent": os.getpid(), "child": child}, nbytes=nbytes)
    try:
        protocol.wait()
    finally:
        protocol.kill_child(child)


def pool() -> None:
    """Four workers sleep on, whatever becomes of their parent: as long as one lives, its memory stays."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    workers = []
    for _ in range(4):
        workers.append(os.fork())
        if workers[-1] == 0:
            protocol.sleep_until_closed()
            os._exit(0)
    pids = {"parent": os.getpid(), **{f"worker{at}": pid for at, pid in enumerate(workers)}}
    protocol.ready("forked", pids=pids, nbytes=nbytes)
    try:
        protocol.wait()
    finally:
        for pid in workers:
            protocol.kill_child(pid)


def child_closes() -> None:
    """The child closes the device files that it inherited, and keeps their mappings."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    close_now, tell = os.pipe()
    hear, closed = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        _sleep_without_files(close_now, closed)
    pids = {"parent": os.getpid(), "child": child}
    protocol.ready("forked", pids=pids, nbytes=nbytes)
    try:
        protocol.wait()
        os.write(tell, b".")
        os.read(hear, 1)
        protocol.ready("closed", pids=pids, nbytes=nbytes)
        protocol.wait()
    finally:
        protocol.kill_child(child)


def _sleep_without_files(close_now: int, closed: int) -> None:
    os.read(close_now, 1)
    driver.close_device_files()
    os.write(closed, b".")
    protocol.sleep_until_closed()
    os._exit(0)


if __name__ == "__main__":
    protocol.main(orphan, pool, child_closes)

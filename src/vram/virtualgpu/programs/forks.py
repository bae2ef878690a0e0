"""A process allocates and forks: the child inherits the open device files."""

from __future__ import annotations

import os

import driver
import protocol


def orphan() -> None:
    """The child sleeps on, whatever becomes of its parent."""
    _fork_sleepers("child")


def pool() -> None:
    """Four workers sleep on, whatever becomes of their parent: as long as one lives, its memory stays."""
    _fork_sleepers(*(f"worker{at}" for at in range(4)))


def _fork_sleepers(*roles: str) -> None:
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    pids = {"parent": os.getpid()}
    for role in roles:
        pids[role] = protocol.fork()
        if pids[role] == 0:
            protocol.sleep_until_closed()
            os._exit(0)
    try:
        protocol.stage("forked", pids=pids, nbytes=nbytes)
    finally:
        for role in roles:
            protocol.kill_child(pids[role])


def child_closes() -> None:
    """The child closes the device files that it inherited, and keeps their mappings."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    driver.context()
    driver.alloc(nbytes)
    close_now, tell = os.pipe()
    hear, closed = os.pipe()
    child = protocol.fork()
    if child == 0:
        os.close(tell)
        _sleep_without_files(close_now, closed)
    pids = {"parent": os.getpid(), "child": child}
    try:
        protocol.stage("forked", pids=pids, nbytes=nbytes)
        os.write(tell, b".")
        os.read(hear, 1)
        protocol.stage("closed", pids=pids, nbytes=nbytes)
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

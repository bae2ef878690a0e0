"""A process that never uses CUDA holds a descriptor of memory that another process allocated."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable

import driver
import protocol

SYS_PIDFD_GETFD = 438
MAX_NBYTES = 16 * protocol.GIB

Export = Callable[[int], Callable[[], int]]
"""Allocates that many bytes; what it returns makes a descriptor of them."""


def handle() -> None:
    """The descriptor is that of an exported allocation."""
    _hold(_exported_handle, protocol.size_argument(4 * protocol.GIB))


def dmabuf() -> None:
    """The descriptor is a dma-buf."""
    _hold(_dmabuf, protocol.size_argument(2 * protocol.GIB))


def _exported_handle(nbytes: int) -> Callable[[], int]:
    driver.context()
    allocation = driver.create(nbytes)
    return lambda: driver.export(allocation)


def _dmabuf(nbytes: int) -> Callable[[], int]:
    driver.context()
    # cuMemAlloc answers on 2 MiB borders for sizes like these, which a dma-buf needs.
    pointer = driver.alloc(nbytes)
    return lambda: driver.dmabuf(pointer, nbytes)


def _hold(export: Export, nbytes: int) -> None:
    """Reach the stages allocated, exported, allocator killed, closed."""
    ours, theirs = socket.socketpair()
    allocator = protocol.ForkedWorker(_allocate_and_send, export, nbytes, theirs)
    pids = {"holder": os.getpid(), "allocator": allocator.pid}
    protocol.stage("allocated", pids=pids, nbytes=nbytes)
    allocator.turn()
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    protocol.stage("exported", pids=pids, nbytes=nbytes, descriptor=descriptor)
    allocator.kill()
    protocol.stage("allocator killed", pids=pids, nbytes=nbytes, descriptor=descriptor)
    os.close(descriptor)
    protocol.stage("closed", pids=pids)


def _allocate_and_send(export: Export, nbytes: int, to: socket.socket) -> protocol.Turns:
    new_descriptor = export(nbytes)
    yield None
    socket.send_fds(to, [b"."], [new_descriptor()])
    yield None


def measure() -> None:
    """A process without a context copies a holder's descriptor and measures the allocation behind it.

    Arguments: the holder's pid and its descriptor. An import tells no size, but the driver maps
    an imported handle at exactly its own size and at no other, so every size is tried in turn.
    """
    driver.init()
    descriptor = copy_descriptor(int(sys.argv[1]), int(sys.argv[2]))
    answer, handle = driver.import_code(descriptor)
    os.close(descriptor)
    if answer:
        protocol.stage("refused", import_code=answer)
        return
    protocol.stage("imported", import_code=answer)
    search = SizeSearch(handle, driver.granularity())
    nbytes = search.nbytes()
    protocol.stage("measured", nbytes=nbytes, tries=search.tries, refusals=sorted(search.refusals))
    driver.release(handle)
    protocol.stage("released")


def copy_descriptor(pid: int, descriptor: int) -> int:
    """Take a copy of another process's descriptor, as ptrace permission allows."""
    process = os.pidfd_open(pid)
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(SYS_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return int(copy)


class SizeSearch:
    """Finds an imported allocation's size, counting the tries and the driver's refusals."""

    def __init__(self, handle: int, step: int) -> None:
        self.handle, self.step = handle, step
        self.tries = 0
        self.refusals: set[int] = set()

    def nbytes(self) -> int:
        """Return the one size at which the handle can be mapped, 0 where there is none."""
        address = driver.reserve(MAX_NBYTES)
        try:
            sizes = range(self.step, MAX_NBYTES + 1, self.step)
            return next((size for size in sizes if self._maps(address, size)), 0)
        finally:
            driver.unreserve(address, MAX_NBYTES)

    def _maps(self, address: int, nbytes: int) -> bool:
        self.tries += 1
        answer = driver.map_code(address, nbytes, self.handle)
        if answer == 0:
            driver.unmap(address, nbytes)
        else:
            self.refusals.add(answer)
        return answer == 0


if __name__ == "__main__":
    protocol.main(handle, dmabuf, measure)

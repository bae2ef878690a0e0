"""A process that never uses CUDA holds a descriptor of memory that another process allocated."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import driver
import protocol

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
    protocol.ready("allocated", pids=pids, nbytes=nbytes)
    protocol.wait()
    allocator.turn()
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    protocol.ready("exported", pids=pids, nbytes=nbytes, descriptor=descriptor)
    protocol.wait()
    allocator.kill()
    protocol.ready("allocator killed", pids=pids, nbytes=nbytes, descriptor=descriptor)
    protocol.wait()
    os.close(descriptor)
    protocol.ready("closed", pids=pids)
    protocol.wait()


def _allocate_and_send(export: Export, nbytes: int, to: socket.socket) -> protocol.Turns:
    new_descriptor = export(nbytes)
    yield None
    socket.send_fds(to, [b"."], [new_descriptor()])
    yield None


if __name__ == "__main__":
    protocol.main(handle, dmabuf)

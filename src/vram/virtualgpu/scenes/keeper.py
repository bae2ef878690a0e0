"""A keeper holds a descriptor of memory that another process allocated. It never uses CUDA."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import stage

Export = Callable[[int], Callable[[], int]]
"""Allocates that many bytes; what it returns makes a descriptor of them."""


def hand_over(allocate: Export, nbytes: int, to: socket.socket) -> stage.Play:
    descriptor_of_it = allocate(nbytes)
    yield None
    socket.send_fds(to, [b"."], [descriptor_of_it()])
    yield None


def keep(allocate: Export, nbytes: int) -> None:
    """Play the scene: allocated, exported, allocator killed, closed."""
    ours, theirs = socket.socketpair()
    allocator = stage.Worker(hand_over, allocate, nbytes, theirs)
    pids = {"keeper": os.getpid(), "allocator": allocator.pid}
    stage.ready("allocated", pids=pids, nbytes=nbytes)
    stage.wait()
    allocator.turn()
    _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
    stage.ready("exported", pids=pids, nbytes=nbytes, descriptor=descriptor)
    stage.wait()
    allocator.kill()
    stage.ready("allocator killed", pids=pids, nbytes=nbytes, descriptor=descriptor)
    stage.wait()
    os.close(descriptor)
    stage.ready("closed", pids=pids)
    stage.wait()

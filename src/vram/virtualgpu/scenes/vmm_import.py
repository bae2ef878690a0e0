"""One process imports and maps another's exported allocation, and outlives it."""

from __future__ import annotations

import os
import socket

import driver
import sharing
import stage


def export(nbytes: int, to: socket.socket) -> stage.Play:
    driver.context()
    handle = sharing.create(nbytes)
    descriptor = sharing.export(handle)
    socket.send_fds(to, [b"."], [descriptor])
    os.close(descriptor)
    yield None


def borrow(nbytes: int, source: socket.socket) -> stage.Play:
    driver.context()
    yield None
    _, (descriptor,), _, _ = socket.recv_fds(source, 1, 1)
    answer, handle = sharing.import_code(descriptor)
    os.close(descriptor)
    yield {"import": answer}
    address = sharing.reserve(nbytes)
    mapped = sharing.map_code(address, nbytes, handle)
    answers = {"map": mapped, "access": sharing.access_code(address, nbytes)}
    driver.fill(address, 1, stage.MIB)
    yield answers
    sharing.unmap(address, nbytes)
    sharing.release(handle)
    yield None


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    near, far = socket.socketpair()
    exporter = stage.Worker(export, nbytes, near)
    importer = stage.Worker(borrow, nbytes, far)
    near.close()
    pids = {"exporter": exporter.pid, "importer": importer.pid}
    stage.ready("exported", pids=pids, nbytes=nbytes)
    stage.wait()
    stage.ready("imported", pids=pids, nbytes=nbytes, **importer.turn())
    stage.wait()
    stage.ready("mapped", pids=pids, nbytes=nbytes, **importer.turn())
    stage.wait()
    exporter.kill()
    stage.ready("exporter killed", pids=pids, nbytes=nbytes)
    stage.wait()
    importer.turn()
    stage.ready("released", pids=pids)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

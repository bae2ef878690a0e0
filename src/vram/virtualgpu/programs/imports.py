"""One process imports memory of another, and outlives it."""

from __future__ import annotations

import os
import socket

import driver
import protocol


def ipc() -> None:
    """By an IPC handle of plain memory."""
    nbytes = protocol.size_argument(4 * protocol.GIB)
    exporter = protocol.ForkedWorker(_export_ipc, nbytes)
    importer = protocol.ForkedWorker(_import_ipc)
    pids = {"exporter": exporter.pid, "importer": importer.pid}
    protocol.stage("allocated", pids=pids, nbytes=nbytes)
    importer.turn(exporter.first)
    protocol.stage("imported", pids=pids, nbytes=nbytes)
    exporter.kill()
    protocol.stage("exporter killed", pids=pids, nbytes=nbytes)
    importer.turn()
    protocol.stage("closed", pids=pids)


def _export_ipc(nbytes: int) -> protocol.Turns:
    driver.context()
    pointer = driver.alloc(nbytes)
    yield driver.ipc_handle(pointer)


def _import_ipc() -> protocol.Turns:
    driver.context()
    handle = yield None
    pointer = driver.ipc_open(handle)
    yield None
    driver.ipc_close(pointer)
    yield None


def vmm() -> None:
    """By the descriptor of an exported allocation, which is then mapped."""
    nbytes = protocol.size_argument(protocol.GIB)
    near, far = socket.socketpair()
    exporter = protocol.ForkedWorker(_export_vmm, nbytes, near)
    importer = protocol.ForkedWorker(_import_vmm, nbytes, far)
    near.close()
    pids = {"exporter": exporter.pid, "importer": importer.pid}
    protocol.stage("exported", pids=pids, nbytes=nbytes)
    protocol.stage("imported", pids=pids, nbytes=nbytes, **importer.turn())
    protocol.stage("mapped", pids=pids, nbytes=nbytes, **importer.turn())
    exporter.kill()
    protocol.stage("exporter killed", pids=pids, nbytes=nbytes)
    importer.turn()
    protocol.stage("released", pids=pids)


def _export_vmm(nbytes: int, to: socket.socket) -> protocol.Turns:
    driver.context()
    descriptor = driver.export(driver.create(nbytes))
    socket.send_fds(to, [b"."], [descriptor])
    os.close(descriptor)
    yield None


def _import_vmm(nbytes: int, source: socket.socket) -> protocol.Turns:
    driver.context()
    yield None
    _, (descriptor,), _, _ = socket.recv_fds(source, 1, 1)
    answer, handle = driver.import_code(descriptor)
    os.close(descriptor)
    yield {"import": answer}
    address = driver.reserve(nbytes)
    mapped = driver.map_code(address, nbytes, handle)
    answers = {"map": mapped, "access": driver.access_code(address, nbytes)}
    driver.fill(address, 1, protocol.MIB)
    yield answers
    driver.unmap(address, nbytes)
    driver.release(handle)
    yield None


if __name__ == "__main__":
    protocol.main(ipc, vmm)

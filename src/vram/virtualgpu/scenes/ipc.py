"""One process opens another's memory by IPC handle, and outlives it."""

from __future__ import annotations

import driver
import sharing
import stage


def export(nbytes: int) -> stage.Play:
    driver.context()
    pointer = driver.alloc(nbytes)
    yield sharing.ipc_handle(pointer)


def borrow() -> stage.Play:
    driver.context()
    handle = yield None
    pointer = sharing.ipc_open(handle)
    yield None
    sharing.ipc_close(pointer)
    yield None


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    exporter = stage.Worker(export, nbytes)
    importer = stage.Worker(borrow)
    pids = {"exporter": exporter.pid, "importer": importer.pid}
    stage.ready("allocated", pids=pids, nbytes=nbytes)
    stage.wait()
    importer.turn(exporter.first)
    stage.ready("imported", pids=pids, nbytes=nbytes)
    stage.wait()
    exporter.kill()
    stage.ready("exporter killed", pids=pids, nbytes=nbytes)
    stage.wait()
    importer.turn()
    stage.ready("closed", pids=pids)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

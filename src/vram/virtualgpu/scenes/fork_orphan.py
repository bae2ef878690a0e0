"""A process allocates and forks; the child sleeps on, whatever becomes of its parent."""

from __future__ import annotations

import os

import driver
import stage


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    driver.context()
    driver.alloc(nbytes)
    child = os.fork()
    if child == 0:
        stage.outlive()
        os._exit(0)
    stage.ready("forked", pids={"parent": os.getpid(), "child": child}, nbytes=nbytes)
    try:
        stage.wait()
    finally:
        stage.end(child)


if __name__ == "__main__":
    stage.act(scene)

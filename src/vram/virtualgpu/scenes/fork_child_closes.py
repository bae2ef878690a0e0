"""A forked child closes the device files that it inherited, and keeps their mappings."""

from __future__ import annotations

import os

import driver
import stage


def device_descriptors() -> list[int]:
    """Descriptors of this process on the driver's device files."""
    mine = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if "/dev/nvidia" in target:
            mine.append(int(name))
    return mine


def sleep_without_files(told: int, done: int) -> None:
    """Play the child: close the device files when told, then sleep."""
    os.read(told, 1)
    for descriptor in device_descriptors():
        os.close(descriptor)
    os.write(done, b".")
    stage.outlive()
    os._exit(0)


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    driver.context()
    driver.alloc(nbytes)
    told, tell = os.pipe()
    hear, done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        sleep_without_files(told, done)
    pids = {"parent": os.getpid(), "child": child}
    stage.ready("forked", pids=pids, nbytes=nbytes)
    try:
        stage.wait()
        os.write(tell, b".")
        os.read(hear, 1)
        stage.ready("closed", pids=pids, nbytes=nbytes)
        stage.wait()
    finally:
        stage.end(child)


if __name__ == "__main__":
    stage.act(scene)

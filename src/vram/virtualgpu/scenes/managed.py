"""A process holds managed memory that the host touches, then the device, then the host again."""

from __future__ import annotations

import ctypes

import driver
import stage


def scene() -> None:
    nbytes = stage.size_argument(64 * stage.MIB)
    driver.context()
    pointer = driver.alloc_managed(nbytes)
    ctypes.memset(pointer, 0x5A, nbytes)
    stage.ready("allocated", nbytes=nbytes)
    stage.wait()
    driver.fill(pointer, 0xA5, nbytes)
    stage.ready("touched by the device", nbytes=nbytes)
    stage.wait()
    ctypes.memset(pointer, 0x5A, nbytes)
    stage.ready("touched by the host", nbytes=nbytes)
    stage.wait()
    driver.free(pointer)
    stage.ready("freed")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

"""A stream-ordered pool hands the old bytes of what was freed to the next owner."""

from __future__ import annotations

import driver
import stage

CHUNK = 32 * stage.MIB
OLD_BYTE = 0xA5


def allocate(nbytes: int) -> list[int]:
    return [driver.alloc_async(CHUNK) for _ in range(nbytes // CHUNK)]


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    driver.context()
    driver.keep_everything(driver.pool())
    pointers = allocate(nbytes)
    for pointer in pointers:
        driver.fill(pointer, OLD_BYTE, CHUNK)
    for pointer in pointers:
        driver.free_async(pointer)
    seen = sum(driver.read(pointer, CHUNK).count(OLD_BYTE) for pointer in allocate(nbytes))
    stage.ready("reused", nbytes=nbytes, old_bytes=seen)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

"""A stream-ordered pool keeps what was freed into it, old bytes and all, until it is trimmed."""

from __future__ import annotations

import driver
import stage

CHUNK = 32 * stage.MIB
OLD_BYTE = 0xA5


def old_bytes(pointer: int, nbytes: int) -> int:
    return driver.read(pointer, nbytes).count(OLD_BYTE)


def figures(pool: driver.c_void_p) -> dict[str, int]:
    return {
        "reserved": driver.pool_figure(pool, driver.RESERVED_CURRENT),
        "used": driver.pool_figure(pool, driver.USED_CURRENT),
    }


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    driver.context()
    pool = driver.pool()
    driver.keep_everything(pool)
    pointers = [driver.alloc_async(CHUNK) for _ in range(nbytes // CHUNK)]
    driver.fill(pointers[0], OLD_BYTE, CHUNK)
    stage.ready("allocated", nbytes=nbytes, **figures(pool))
    stage.wait()
    for pointer in pointers:
        driver.free_async(pointer)
    stage.ready("freed", nbytes=nbytes, **figures(pool))
    stage.wait()
    pointers = [driver.alloc_async(CHUNK) for _ in range(nbytes // CHUNK)]
    seen = max(old_bytes(pointer, CHUNK) for pointer in pointers)
    for pointer in pointers:
        driver.free_async(pointer)
    stage.ready("reused", nbytes=nbytes, old_bytes=seen, chunk=CHUNK, **figures(pool))
    stage.wait()
    driver.trim(pool)
    stage.ready("trimmed", **figures(pool))
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

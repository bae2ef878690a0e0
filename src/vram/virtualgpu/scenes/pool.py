"""A stream-ordered pool keeps what was freed into it until it is trimmed."""

from __future__ import annotations

from ctypes import c_void_p
from typing import Any

import driver
import stage

CHUNK = 32 * stage.MIB


def figures(pool: c_void_p) -> dict[str, Any]:
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
    stage.ready("allocated", nbytes=nbytes, **figures(pool))
    stage.wait()
    for pointer in pointers:
        driver.free_async(pointer)
    stage.ready("freed", nbytes=nbytes, **figures(pool))
    stage.wait()
    driver.trim(pool)
    stage.ready("trimmed", **figures(pool))
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

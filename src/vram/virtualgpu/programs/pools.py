"""A stream-ordered pool keeps what was freed into it, old bytes included, until it is trimmed."""

from __future__ import annotations

from ctypes import c_void_p

import driver
import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 32 * protocol.MIB


def trim() -> None:
    """Free everything into a pool that keeps it, then trim the pool."""
    nbytes = protocol.size_argument(protocol.GIB)
    driver.context()
    pool = driver.pool()
    driver.keep_everything(pool)
    pointers = _allocate(nbytes)
    protocol.stage("allocated", nbytes=nbytes, **_figures(pool))
    for pointer in pointers:
        driver.free_async(pointer)
    protocol.stage("freed", nbytes=nbytes, **_figures(pool))
    driver.trim(pool)
    protocol.stage("trimmed", **_figures(pool))


def reuse() -> None:
    """Allocate again what was freed, and count the old bytes that the next owner gets."""
    nbytes = protocol.size_argument(protocol.GIB)
    driver.context()
    driver.keep_everything(driver.pool())
    pointers = _allocate(nbytes)
    for pointer in pointers:
        driver.fill(pointer, driver.OLD_BYTE, CHUNK)
    for pointer in pointers:
        driver.free_async(pointer)
    old_bytes = sum(driver.read(pointer, CHUNK).count(driver.OLD_BYTE) for pointer in _allocate(nbytes))
    protocol.stage("reused", nbytes=nbytes, old_bytes=old_bytes)


def _allocate(nbytes: int) -> list[int]:
    return [driver.alloc_async(CHUNK) for _ in range(nbytes // CHUNK)]


def _figures(pool: c_void_p) -> dict[str, Any]:
    return {
        "reserved": driver.pool_figure(pool, driver.RESERVED_CURRENT),
        "used": driver.pool_figure(pool, driver.USED_CURRENT),
    }


if __name__ == "__main__":
    protocol.main(trim, reuse)

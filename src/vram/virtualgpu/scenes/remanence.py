"""Does a fresh plain allocation show what was there before, in one process and across two?"""

from __future__ import annotations

import driver
import stage

OLD_BYTE = 0xA5
CHUNK = 64 * stage.MIB


def leave(nbytes: int) -> stage.Play:
    """Fill memory and end without freeing it."""
    driver.context()
    driver.fill(driver.alloc(nbytes), OLD_BYTE, nbytes)
    yield None


def nonzero_bytes(pointer: int, nbytes: int) -> int:
    chunks = (driver.read(pointer + at, min(CHUNK, nbytes - at)) for at in range(0, nbytes, CHUNK))
    return sum(len(chunk) - chunk.count(0) for chunk in chunks)


def scene() -> None:
    nbytes = stage.size_argument(stage.GIB)
    stage.Worker(leave, nbytes).kill()
    driver.context()
    pointer = driver.alloc(nbytes)
    across = nonzero_bytes(pointer, nbytes)
    driver.fill(pointer, OLD_BYTE, nbytes)
    control = nonzero_bytes(pointer, nbytes)
    driver.free(pointer)
    inside = nonzero_bytes(driver.alloc(nbytes), nbytes)
    stage.ready("read", nbytes=nbytes, across=across, inside=inside, control=control)
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

"""A process allocates, and frees when told to."""

from __future__ import annotations

import driver
import stage


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    driver.context()
    before, total = driver.free_and_total()
    pointer = driver.alloc(nbytes)
    stage.ready("allocated", nbytes=nbytes, free_before=before, total=total)
    stage.wait()
    driver.free(pointer)
    stage.ready("freed", free_before=before, free=driver.free_and_total()[0])
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

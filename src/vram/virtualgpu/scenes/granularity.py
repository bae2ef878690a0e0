"""What small allocations really cost: each stage allocates the size that it is told."""

from __future__ import annotations

import driver
import sharing
import stage


def scene() -> None:
    driver.context()
    free, total = driver.free_and_total()
    stage.ready("context", free=free, total=total, vmm_granularity=sharing.granularity())
    while True:
        nbytes = int(stage.wait())
        before = driver.free_and_total()[0]
        driver.alloc(nbytes)
        stage.ready("allocated", nbytes=nbytes, taken=before - driver.free_and_total()[0])


if __name__ == "__main__":
    stage.act(scene)

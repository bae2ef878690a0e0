"""A process resets its primary context, and all it held is given back."""

from __future__ import annotations

import driver
import stage


def scene() -> None:
    nbytes = stage.size_argument(4 * stage.GIB)
    driver.context()
    driver.alloc(nbytes)
    stage.ready("allocated", nbytes=nbytes)
    stage.wait()
    driver.reset()
    stage.ready("reset")
    stage.wait()


if __name__ == "__main__":
    stage.act(scene)

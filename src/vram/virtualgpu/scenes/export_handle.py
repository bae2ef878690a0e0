"""A process that never uses CUDA keeps the descriptor of somebody else's allocation."""

from __future__ import annotations

from collections.abc import Callable

import driver
import keeper
import sharing
import stage


def allocate(nbytes: int) -> Callable[[], int]:
    driver.context()
    handle = sharing.create(nbytes)
    return lambda: sharing.export(handle)


if __name__ == "__main__":
    stage.act(lambda: keeper.keep(allocate, stage.size_argument(4 * stage.GIB)))

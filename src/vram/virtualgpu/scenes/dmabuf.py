"""A process that never uses CUDA keeps a dma-buf over somebody else's allocation."""

from __future__ import annotations

from collections.abc import Callable

import driver
import keeper
import sharing
import stage


def allocate(nbytes: int) -> Callable[[], int]:
    driver.context()
    # cuMemAlloc answers on 2 MiB borders for sizes like these, which a dma-buf needs.
    pointer = driver.alloc(nbytes)
    return lambda: sharing.dmabuf(pointer, nbytes)


if __name__ == "__main__":
    stage.act(lambda: keeper.keep(allocate, stage.size_argument(2 * stage.GIB)))

"""An owner with a pool of its own: at the end of the block its memory is free, and no other pool is touched.

python examples/threads/3_finalizer_fixed_cupy.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import cupy
from five_threads import run_five
from step import step


@contextmanager
def own_pool() -> Iterator[None]:
    pool = cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc):
        yield
    pool.free_all_blocks()


def use(hold: Callable[[], None]) -> None:
    array = cupy.empty(4 * 1024 * 1024, "uint8")
    assert array.nbytes
    hold()


def work(hold: Callable[[], None]) -> None:
    with own_pool():
        use(hold)


if __name__ == "__main__":
    cupy.cuda.runtime.free(0)
    step("context")
    run_five(work)

"""A CuPy array is an owner, but its memory goes to a pool, which keeps it for the next array.

After the threads the pool still holds all of it. One call releases what it only caches.

python examples/threads/1_no_free_fixed_cupy.py
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
from five_threads import run_five
from step import step


def work(hold: Callable[[], None]) -> None:
    array = cupy.empty(4 * 1024 * 1024, "uint8")
    assert array.nbytes
    hold()


if __name__ == "__main__":
    cupy.cuda.runtime.free(0)
    step("context")
    run_five(work)
    cupy.get_default_memory_pool().free_all_blocks()
    step("pool released")

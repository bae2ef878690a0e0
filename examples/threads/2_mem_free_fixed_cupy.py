"""With CuPy each thread drops its array and has the pool release what is unused, before it ends.

python examples/threads/2_mem_free_fixed_cupy.py
"""

from __future__ import annotations

from collections.abc import Callable

import cupy
from five_threads import run_five
from step import step


def work(hold: Callable[[], None]) -> None:
    array = cupy.empty(4 * 1024 * 1024, "uint8")
    try:
        hold()
    finally:
        del array
        cupy.get_default_memory_pool().free_all_blocks()


if __name__ == "__main__":
    cupy.cuda.runtime.free(0)
    step("context")
    run_five(work)

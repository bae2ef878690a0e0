"""With Numba each thread drops its array and has the pending frees made, before it ends.

vram virtual -- python examples/threads/2_mem_free_fixed_numba.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from five_threads import run_five
from numba import cuda
from step import step

one_at_a_time = threading.Lock()  # Numba's list of pending frees has none of its own


def work(hold: Callable[[], None]) -> None:
    array = cuda.device_array(4 * 1024 * 1024, "uint8")
    try:
        hold()
    finally:
        with one_at_a_time:
            del array
            cuda.current_context().memory_manager.deallocations.clear()


if __name__ == "__main__":
    cuda.current_context()
    step("context")
    run_five(work)

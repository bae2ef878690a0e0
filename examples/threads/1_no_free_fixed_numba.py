"""A Numba array is an owner, but Numba frees later: up to ten frees wait, and one call makes them now.

vram virtual -- python examples/threads/1_no_free_fixed_numba.py
"""

from __future__ import annotations

from collections.abc import Callable

from five_threads import run_five
from numba import cuda
from step import step


def work(hold: Callable[[], None]) -> None:
    array = cuda.device_array(4 * 1024 * 1024, "uint8")
    assert array.nbytes
    hold()


if __name__ == "__main__":
    context = cuda.current_context()
    step("context")
    run_five(work)
    context.memory_manager.deallocations.clear()
    step("pending frees made")

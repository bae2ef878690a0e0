"""The explicit free of PyCUDA is a method of the allocation; `finally` makes it certain.

After `free()` it does not matter where the last reference is dropped.

vram virtual -- python examples/threads/2_mem_free_fixed_pycuda.py
"""

from __future__ import annotations

from collections.abc import Callable

import pycuda.autoinit
import pycuda.driver as cuda
from five_threads import run_five
from step import step


def work(hold: Callable[[], None]) -> None:
    context = pycuda.autoinit.context
    context.push()
    try:
        memory = cuda.mem_alloc(4 * 1024 * 1024)
        try:
            hold()
        finally:
            memory.free()
    finally:
        context.pop()


if __name__ == "__main__":
    step("context")
    run_five(work)

"""A PyCUDA allocation is an owner: it frees itself with its last reference, while its context is current.

So each thread enters the context, and the work is a function of its own: its variables are gone before the
context is left. Dropped after `context.pop()`, PyCUDA would warn and leak it.

vram virtual -- python examples/threads/1_no_free_fixed_pycuda.py
"""

from __future__ import annotations

from collections.abc import Callable

import pycuda.autoinit
import pycuda.driver as cuda
from five_threads import run_five
from step import step


def work(hold: Callable[[], None]) -> None:
    memory = cuda.mem_alloc(4 * 1024 * 1024)
    assert int(memory)
    hold()


def in_context(hold: Callable[[], None]) -> None:
    context = pycuda.autoinit.context
    context.push()
    try:
        work(hold)
    finally:
        context.pop()


if __name__ == "__main__":
    step("context")
    run_five(in_context)

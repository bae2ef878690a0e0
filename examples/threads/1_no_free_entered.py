"""The usual repair of 1_no_free_as_written.py, and its leak: each thread enters the context and leaves it.

`context.pop()` comes before the variable goes. PyCUDA does not free an allocation whose context is not
current in the thread: it warns, once, and the 4 MiB of each thread stay until the process ends.

vram virtual -- python examples/threads/1_no_free_entered.py
"""

from __future__ import annotations

from collections.abc import Callable

import pycuda.autoinit
import pycuda.driver as cuda
from five_threads import run_five
from step import step


def work(hold: Callable[[], None]) -> None:
    pycuda.autoinit.context.push()
    memory = cuda.mem_alloc(4 * 1024 * 1024)
    assert int(memory)
    hold()
    pycuda.autoinit.context.pop()


if __name__ == "__main__":
    step("context")
    run_five(work)

"""An owner that enters its context to free, so that any thread may drop the last reference.

The threads pass their owners on; the main thread, in which no context is current, drops them. `detach()`
ends the context itself.

vram virtual -- python examples/threads/3_finalizer_fixed_pycuda.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pycuda.driver as cuda
from five_threads import run_five
from step import step


@contextmanager
def current(context: Any) -> Iterator[None]:
    context.push()
    try:
        yield
    finally:
        context.pop()


class Owner:
    def __init__(self, context: Any, nbytes: int) -> None:
        self.memory = None  # the finalizer also runs where the allocation failed
        self.context = context
        with current(context):
            self.memory = cuda.mem_alloc(nbytes)

    def close(self) -> None:
        memory, self.memory = self.memory, None
        if memory is not None:
            with current(self.context):
                memory.free()

    def __del__(self) -> None:
        self.close()


if __name__ == "__main__":
    cuda.init()
    context = cuda.Device(0).make_context()
    context.pop()
    step("context")
    owners: list[Owner] = []

    def work(hold: Callable[[], None]) -> None:
        owners.append(Owner(context, 4 * 1024 * 1024))
        hold()

    run_five(work)
    owners.clear()
    step("owners dropped")
    context.detach()
    step("context ended")

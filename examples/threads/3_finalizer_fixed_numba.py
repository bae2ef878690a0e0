"""An owner whose block frees at its end; `cuda.close()` then ends the context itself.

vram virtual -- python examples/threads/3_finalizer_fixed_numba.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from five_threads import run_five
from numba import cuda
from step import step


class Owner:
    one_at_a_time = threading.Lock()  # Numba's list of pending frees has none of its own

    def __init__(self, nbytes: int) -> None:
        self.array: Any = cuda.device_array(nbytes, "uint8")

    def __enter__(self) -> Any:
        return self.array

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self.one_at_a_time:
            self.array = None
            cuda.current_context().memory_manager.deallocations.clear()


def use(hold: Callable[[], None]) -> None:
    with Owner(4 * 1024 * 1024):
        hold()


if __name__ == "__main__":
    cuda.current_context()
    step("context")
    run_five(use)
    cuda.close()
    step("context ended")

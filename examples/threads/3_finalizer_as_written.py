"""Each thread ends with "invalid device context", and the half-made object's finalizer fails too.

PyCUDA has no `mem_free`, so `__del__` raises AttributeError, which Python prints and ignores. With a context,
the allocation inside would be freed by its own finalizer, not by this one. The program exits with 0.

vram virtual -- python examples/threads/3_finalizer_as_written.py
"""

from __future__ import annotations

import threading
import time

import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from step import step


class Owner:
    def __init__(self, nbytes: int) -> None:
        self.memory = cuda.mem_alloc(nbytes)
        print(f"{threading.current_thread().name} has allocated")

    def __del__(self) -> None:
        cuda.mem_free(self.memory)
        print(f"{threading.current_thread().name} has freed")


def work() -> None:
    owner = Owner(1024 * 1024 * 4)  # noqa: F841
    time.sleep(1)


if __name__ == "__main__":
    step("context")
    threads = []
    for _ in range(5):
        thread = threading.Thread(target=work)
        threads.append(thread)
        thread.start()

    for thread in threads:
        thread.join()

    step("threads ended")
    print("the threads have ended, their memory is free")

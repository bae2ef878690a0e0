"""Each thread ends with "invalid device context"; with a context it would end one call later.

PyCUDA has no `mem_free`: an allocation has a method `free()`, and frees itself with its last reference.
Nothing is allocated, nothing is freed; the program says that the memory is free, and exits with 0.

vram virtual -- python examples/threads/2_mem_free_as_written.py
"""

from __future__ import annotations

import threading
import time

import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from step import step


def work() -> None:
    nbytes = 1024 * 1024 * 4
    memory = cuda.mem_alloc(nbytes)
    print(f"{threading.current_thread().name} has allocated")
    time.sleep(1)
    cuda.mem_free(memory)
    print(f"{threading.current_thread().name} has freed")


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

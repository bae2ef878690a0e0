"""Nothing leaks here, because nothing is allocated: each thread ends with "invalid device context".

A CUDA context is current per thread, and autoinit makes it current in the main thread only. The exceptions
end the threads and not the program: it goes on, says that the memory stays, and exits with 0.

vram virtual -- python examples/threads/1_no_free_as_written.py
"""

from __future__ import annotations

import threading
import time

import pycuda.autoinit  # noqa: F401
import pycuda.driver as cuda
from step import step


def work() -> None:
    nbytes = 1024 * 1024 * 4
    memory = cuda.mem_alloc(nbytes)  # noqa: F841
    print(f"{threading.current_thread().name} has allocated")
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
    print("the threads have ended, their memory stays")

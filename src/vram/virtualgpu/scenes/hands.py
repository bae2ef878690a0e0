"""What a puppet can do with memory, beyond the plain calls: pools, pinned memory, threads, contexts."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from ctypes import byref, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import driver
from context_only import second_context
from remanence import CHUNK, nonzero_bytes

primary = 0
owned: dict[int, Any] = {}


def context() -> None:
    """Make the first device's primary context, current in this thread."""
    global primary
    primary = driver.context()


def new_context() -> int:
    """Make a context beside the primary one; it becomes the current one."""
    return second_context().value or 0


def destroy_context(handle: int) -> None:
    driver.call("cuCtxDestroy_v2", c_void_p(handle))
    if primary:
        driver.use(primary)


def alloc_code(nbytes: int) -> int:
    return driver.code("cuMemAlloc_v2", byref(c_uint64()), c_size_t(nbytes))


def free_code(pointer: int) -> int:
    return driver.code("cuMemFree_v2", c_uint64(pointer))


def read_code(pointer: int, nbytes: int) -> int:
    """The driver's answer to a copy from *pointer* to the host."""
    host = ctypes.create_string_buffer(nbytes)
    return driver.code("cuMemcpyDtoH_v2", host, c_uint64(pointer), c_size_t(nbytes))


def synchronize() -> None:
    driver.call("cuCtxSynchronize")


def start_fill(pointer: int, nbytes: int) -> None:
    """Have the device write, and do not wait for it."""
    driver.call("cuMemsetD8_v2", c_uint64(pointer), ctypes.c_ubyte(0xA5), c_size_t(nbytes))


# ---- pools ----


def pool_keeps() -> None:
    driver.keep_everything(driver.pool())


def pool_trim() -> None:
    driver.trim(driver.pool())


def pool_figures() -> list[int]:
    """What the default pool says that it has reserved, and that is used of it."""
    pool = driver.pool()
    return [driver.pool_figure(pool, which) for which in (driver.RESERVED_CURRENT, driver.USED_CURRENT)]


def free_async(pointer: int) -> None:
    """Free in the order of the default stream, without waiting for it."""
    driver.call("cuMemFreeAsync", c_uint64(pointer), None)


# ---- host memory ----


def pin(nbytes: int) -> int:
    pointer = c_void_p()
    driver.call("cuMemHostAlloc", byref(pointer), c_size_t(nbytes), c_uint(0))
    return pointer.value or 0


def unpin(pointer: int) -> None:
    driver.call("cuMemFreeHost", c_void_p(pointer))


def host_fill(pointer: int, byte: int, nbytes: int) -> None:
    """Write to memory that the host can reach, as the host does."""
    ctypes.memset(pointer, byte, nbytes)


# ---- threads and objects ----


def in_thread(work: Callable[[], None]) -> None:
    """Run *work* in a thread that has our context, and wait until the thread has ended."""

    def here() -> None:
        driver.use(primary)
        work()

    thread = threading.Thread(target=here)
    thread.start()
    thread.join()


def thread_alloc(nbytes: int) -> int:
    pointers: list[int] = []
    in_thread(lambda: pointers.append(driver.alloc(nbytes)))
    return pointers[0]


def thread_free(pointer: int) -> None:
    in_thread(lambda: driver.free(pointer))


def thread_use(nbytes: int) -> None:
    """Allocate in a thread, and free there before it ends."""
    in_thread(lambda: driver.free(driver.alloc(nbytes)))


def thread_own(nbytes: int) -> int:
    """Have an owner object made and forgotten in a thread; return where its memory was."""
    pointers: list[int] = []
    in_thread(lambda: pointers.append(driver.Buffer(nbytes).pointer))
    return pointers[0]


def lose(nbytes: int) -> None:
    """Allocate, forget the pointer and collect garbage."""
    driver.alloc(nbytes)
    gc.collect()


def own(nbytes: int) -> int:
    buffer = driver.Buffer(nbytes)
    owned[buffer.pointer] = buffer
    return buffer.pointer


def disown(pointer: int) -> None:
    del owned[pointer]


def fail_with_raw_pointer(nbytes: int) -> None:
    """An exception jumps over the free, and is handled."""
    try:
        pointer = driver.alloc(nbytes)
        raise ValueError("the step failed")
        driver.free(pointer)
    except ValueError:
        gc.collect()


def fail_and_keep(nbytes: int) -> None:
    """An exception passes a frame with an owner object in it, and somebody keeps the exception."""
    try:
        hold_and_fail(nbytes)
    except ValueError as error:
        # What an interactive interpreter does with every exception that reaches the prompt.
        sys.last_value = error
    gc.collect()


def hold_and_fail(nbytes: int) -> None:
    buffer = driver.Buffer(nbytes)
    raise ValueError(f"the step failed with a buffer at {buffer.pointer:#x}")


def drop_exception() -> None:
    sys.last_value = None
    gc.collect()


# ---- old bytes ----


def count_nonzero(pointer: int, nbytes: int) -> int:
    return nonzero_bytes(pointer, nbytes)


def count_byte(pointer: int, byte: int, nbytes: int) -> int:
    chunks = (driver.read(pointer + at, min(CHUNK, nbytes - at)) for at in range(0, nbytes, CHUNK))
    return sum(chunk.count(byte) for chunk in chunks)


VERBS = (
    *(context, new_context, destroy_context, synchronize),
    *(alloc_code, free_code, read_code, start_fill),
    *(pool_keeps, pool_trim, pool_figures, free_async),
    *(pin, unpin, host_fill),
    *(thread_alloc, thread_free, thread_use, thread_own, lose, own, disown),
    *(fail_with_raw_pointer, fail_and_keep, drop_exception),
    *(count_nonzero, count_byte),
)

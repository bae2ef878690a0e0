"""What the lab's worker can do with memory: every operation that an experiment may call, by its name.

Most are driver calls of :mod:`driver`. The three groups at the end say which of them take memory and
which release it: the lab counts both, so that an experiment cannot take more than it named.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

import driver
from checkpoint import checkpoint_code
from kernels import (
    break_context,
    kernel_free,
    kernel_malloc,
    launch_deep,
    launch_empty,
    launch_fault,
    load_kernels,
    load_malloc,
    touch_s,
)
from owners import fail_and_keep

RELAXED_CAPTURE = 2

primary = 0
graphs: dict[str, c_void_p] = {}
pools: dict[str, c_void_p] = {}
streams: list[c_void_p] = []


# ---- contexts ----


def context() -> None:
    """Make the first device's primary context, current in this thread."""
    global primary
    primary = driver.context()


def destroy_context(handle: int) -> None:
    """Destroy a context of ``new_context``; the primary one, if there is one, is current again."""
    driver.destroy_context(handle)
    if primary:
        driver.use(primary)


def reset_code() -> tuple[str, int]:
    """Reset the device as a program does; return the call that was made, and its answer.

    Without a runtime library it is the driver's call on which the runtime's rests. Another context that
    is current would keep the runtime from resetting anything, so the primary one is made current first.
    """
    global primary
    if primary:
        driver.use(primary)
        primary = 0
    answer = driver.runtime_code("cudaDeviceReset")
    return ("cuDevicePrimaryCtxReset", driver.reset_code()) if answer is None else ("cudaDeviceReset", answer)


def cuda_reset_code() -> int | None:
    """The runtime's reset with whatever context is current; None without a runtime library."""
    return driver.runtime_code("cudaDeviceReset")


def context_code() -> int:
    """Return the driver's answer to whether this process can have its primary context."""
    return driver.code("cuDevicePrimaryCtxRetain", byref(c_void_p()), 0)


def synchronize() -> None:
    driver.call("cuCtxSynchronize")


def synchronize_code() -> int:
    return driver.code("cuCtxSynchronize")


def make_streams(count: int) -> None:
    streams.extend(driver.new_stream() for _ in range(count))


def destroy_streams() -> None:
    """Destroy those of ``make_streams``."""
    while streams:
        driver.call("cuStreamDestroy_v2", streams.pop())


# ---- the runtime library ----


def free_null_code() -> tuple[str, int]:
    """Free the null pointer; return the call that was made, and its answer."""
    answer = driver.runtime_code("cudaFree", None)
    if answer is not None:
        return "cudaFree", answer
    try:
        driver.context()
    except driver.CudaError as error:
        return error.call, error.code
    return "cuMemFree", driver.free_code(0)


def cuda_alloc(nbytes: int) -> int:
    """cudaMalloc; without a runtime library a context and cuMemAlloc."""
    pointer = c_void_p()
    answer = driver.runtime_code("cudaMalloc", byref(pointer), c_size_t(nbytes))
    if answer:
        raise driver.CudaError("cudaMalloc", answer)
    if answer is None:
        driver.context()
        return driver.alloc(nbytes)
    return pointer.value or 0


def cuda_alloc_refused(pointer: int, nbytes: int) -> tuple[int, int] | None:
    """cudaMalloc into a variable that holds *pointer*: its answer, and what the variable holds then.

    None without a runtime library. What it gives is freed again.
    """
    variable = c_void_p(pointer)
    answer = driver.runtime_code("cudaMalloc", byref(variable), c_size_t(nbytes))
    if answer == 0:
        cuda_free_code(variable.value or 0)
    return None if answer is None else (answer, variable.value or 0)


def cuda_free_code(pointer: int) -> tuple[str, int]:
    """Free; return the call that was made, cudaFree where there is a runtime, and its answer."""
    answer = driver.runtime_code("cudaFree", c_void_p(pointer))
    return ("cuMemFree", driver.free_code(pointer)) if answer is None else ("cudaFree", answer)


# ---- plain memory ----


def read_code(pointer: int, nbytes: int) -> int:
    """Return the driver's answer to a copy from *pointer* to the host."""
    host = ctypes.create_string_buffer(nbytes)
    return driver.code("cuMemcpyDtoH_v2", host, c_uint64(pointer), c_size_t(nbytes))


def start_fill(pointer: int, nbytes: int) -> None:
    """Have the device write, and do not wait for it."""
    driver.call("cuMemsetD8_v2", c_uint64(pointer), ctypes.c_ubyte(driver.OLD_BYTE), c_size_t(nbytes))


def count_byte(pointer: int, byte: int, nbytes: int) -> int:
    """Return how many of *nbytes* from *pointer* are *byte*."""
    chunk = driver.CHUNK
    chunks = (driver.read(pointer + at, min(chunk, nbytes - at)) for at in range(0, nbytes, chunk))
    return sum(each.count(byte) for each in chunks)


def free_behind_work(pointer: int, seconds: float, streams: int = 1) -> tuple[float, float, float]:
    """Free while streams work: return when the free began, when it returned, when the last work was done.

    The work of each is a host function that takes its time, so that no kernel is needed.
    """
    done: list[float] = []

    def take_time(_: object) -> None:
        time.sleep(seconds)
        done.append(time.monotonic())

    work = driver.HOST_FUNCTION(take_time)
    busy = [driver.new_stream() for _ in range(streams)]
    for stream in busy:
        driver.call("cuLaunchHostFunc", stream, work, None)
    began = time.monotonic()
    driver.free(pointer)
    freed = time.monotonic()
    for stream in busy:
        driver.call("cuStreamSynchronize", stream)
    return began, freed, max(done)


def alloc_pitched(nbytes: int) -> int:
    """Allocate rows of 64 KiB, *nbytes* in all, as cudaMallocPitch does."""
    width = 64 * 1024
    pointer, pitch = c_uint64(), c_size_t()
    height = c_size_t(nbytes // width)
    driver.call("cuMemAllocPitch_v2", byref(pointer), byref(pitch), c_size_t(width), height, c_uint(4))
    return pointer.value


def copy_in_s(pointer: int, nbytes: int, pinned: bool) -> float:
    """Copy so much from the host, whose memory is written first; return the seconds of the second copy."""
    source = pin(nbytes) if pinned else 0
    plain = None if pinned else ctypes.create_string_buffer(nbytes)
    address = source or ctypes.addressof(plain)  # type: ignore[arg-type]
    ctypes.memset(address, 1, nbytes)
    for _ in range(2):
        began = time.monotonic()
        driver.call("cuMemcpyHtoD_v2", c_uint64(pointer), c_void_p(address), c_size_t(nbytes))
        synchronize()
        took = time.monotonic() - began
    if source:
        driver.call("cuMemFreeHost", c_void_p(source))
    return took


def prefetch_s(pointer: int, nbytes: int, device: int) -> float:
    """Prefetch, and return the seconds until it was done."""
    began = time.monotonic()
    driver.prefetch(pointer, nbytes, device)
    return time.monotonic() - began


# ---- pools ----


def pool_keep_all() -> None:
    """Let the default pool keep all that is freed into it."""
    driver.keep_everything(driver.pool())


def pool_trim() -> None:
    driver.trim(driver.pool())


def alloc_in_new_pool(nbytes: int) -> int:
    """Make a pool, and allocate in it. It keeps what is freed into it."""
    pools["new"] = driver.new_pool()
    driver.keep_everything(pools["new"])
    pointer = driver.result(c_uint64, "cuMemAllocFromPoolAsync", c_size_t(nbytes), pools["new"], None)
    synchronize()
    return pointer.value


def free_async(pointer: int) -> None:
    """Free in the order of the default stream, without waiting for it."""
    driver.call("cuMemFreeAsync", c_uint64(pointer), None)


# ---- host memory ----


def pin(nbytes: int) -> int:
    """Pin host memory. It counts as if it were the device's: the claim that it is may hold."""
    return driver.result(c_void_p, "cuMemHostAlloc", c_size_t(nbytes), c_uint(0)).value or 0


def host_mapped(pointer: int) -> bool:
    """Whether this process has memory of the host at that address."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(word, 16) for word in line.split(maxsplit=1)[0].split("-"))
            if begin <= pointer < end:
                return True
    return False


def host_fill(pointer: int, byte: int, nbytes: int) -> None:
    """Write to memory that the host can reach, as the host does."""
    ctypes.memset(pointer, byte, nbytes)


def host_count(pointer: int, byte: int, nbytes: int) -> int:
    """Return how many of *nbytes* from *pointer* are *byte*, read as the host reads its own memory."""
    return ctypes.string_at(pointer, nbytes).count(byte)


# ---- threads and objects ----


def _in_thread(work: Callable[[], None]) -> None:
    """Run *work* in a thread that has our context, and wait until the thread has ended."""

    def run() -> None:
        driver.use(primary)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def thread_alloc(nbytes: int) -> int:
    """Allocate in a thread that has ended when this returns."""
    pointers: list[int] = []
    _in_thread(lambda: pointers.append(driver.alloc(nbytes)))
    return pointers[0]


def thread_free(pointer: int) -> None:
    _in_thread(lambda: driver.free(pointer))


def thread_alloc_and_free(nbytes: int) -> None:
    _in_thread(lambda: driver.free(driver.alloc(nbytes)))


def thread_alloc_owned(nbytes: int) -> int:
    """Have an owner object made and forgotten in a thread; return where its memory was."""
    pointers: list[int] = []
    _in_thread(lambda: pointers.append(driver.AllocationOwner(nbytes).pointer))
    return pointers[0]


def alloc_and_forget(nbytes: int) -> None:
    """Allocate, forget the pointer and collect garbage."""
    driver.alloc(nbytes)
    gc.collect()


def alloc_and_fail(nbytes: int) -> None:
    """Allocate; an exception, which is handled, skips the free."""
    try:
        pointer = driver.alloc(nbytes)
        raise ValueError("the step failed")
        driver.free(pointer)
    except ValueError:
        gc.collect()


def drop_exception() -> None:
    """Forget the exception of ``fail_and_keep``."""
    sys.last_value = None
    gc.collect()


# ---- graphs ----


def run_graph(nbytes: int) -> None:
    """Capture a graph that allocates and frees, and launch it once."""
    stream, graph = driver.new_stream(), c_void_p()
    driver.call("cuStreamBeginCapture_v2", stream, c_int(RELAXED_CAPTURE))
    pointer = driver.result(c_uint64, "cuMemAllocAsync", c_size_t(nbytes), stream)
    driver.call("cuMemFreeAsync", pointer, stream)
    driver.call("cuStreamEndCapture", stream, byref(graph))
    runnable = driver.result(c_void_p, "cuGraphInstantiateWithFlags", graph, c_uint64(0))
    driver.call("cuGraphLaunch", runnable, stream)
    driver.call("cuStreamSynchronize", stream)
    graphs.update(graph=graph, runnable=runnable)


def destroy_graph() -> None:
    driver.call("cuGraphExecDestroy", graphs["runnable"])
    driver.call("cuGraphDestroy", graphs["graph"])


def trim_graph_memory() -> None:
    driver.call("cuDeviceGraphMemTrim", 0)


# ---- the table ----

ALLOCATE = (
    *(driver.alloc, driver.alloc_managed, driver.alloc_async, alloc_in_new_pool, driver.create, pin),
    *(cuda_alloc, alloc_pitched),
    *(thread_alloc, thread_alloc_and_free, thread_alloc_owned),
    *(alloc_and_forget, alloc_and_fail, fail_and_keep, run_graph),
)
"""The first argument is how many bytes it takes; the result, if any, is what frees them."""

FREE = (driver.free, driver.release, free_async, thread_free, free_behind_work)
"""The first argument is what an operation above returned."""

OTHERS = (
    *(driver.init, context, driver.new_context, destroy_context, synchronize),
    *(driver.green_context, driver.destroy_green_context, make_streams, destroy_streams),
    *(reset_code, cuda_reset_code, context_code, synchronize_code, driver.use),
    *(free_null_code, cuda_alloc_refused, cuda_free_code),
    *(launch_fault, break_context),
    *(driver.free_and_total, driver.alloc_code, driver.alloc_managed_code, driver.free_code, read_code),
    *(driver.fill, start_fill, driver.count_nonzero, count_byte, host_fill, host_count),
    *(host_mapped, driver.prefetch, prefetch_s, copy_in_s),
    *(pool_keep_all, pool_trim, drop_exception),
    *(driver.ipc_handle, driver.ipc_open, driver.export, driver.dmabuf, os.close),
    *(driver.reserve, driver.map_code, driver.unmap),
    *(load_kernels, launch_empty, launch_deep, touch_s, destroy_graph, trim_graph_memory),
    *(load_malloc, kernel_malloc, kernel_free),
    checkpoint_code,
)

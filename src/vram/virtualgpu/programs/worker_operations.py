"""What the lab's worker can do with memory: every operation that an experiment may call, by its name.

Most are driver calls of :mod:`driver`. The three groups at the end say which of them take memory and
which release it: the lab counts both, so that an experiment cannot take more than it named.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import driver
from checkpoint import checkpoint_code
from owners import fail_and_keep

RELAXED_CAPTURE = 2

LOCAL_NBYTES = 3072
"""Local memory of one thread of the kernel ``deep``. The driver sets so much aside for every thread
that could run at once: 540 MiB more than at first on 132 processors with 2048 threads each."""

PTX = f"""
.version 6.0
.target sm_52
.address_size 64

.visible .entry empty()
{{
    ret;
}}

.visible .entry deep(.param .u64 deep_out, .param .u32 deep_at)
{{
    .local .align 4 .b8 room[{LOCAL_NBYTES}];
    .reg .b64 %rd<6>;
    .reg .b32 %r<3>;
    ld.param.u64 %rd1, [deep_out];
    ld.param.u32 %r1, [deep_at];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u64 %rd3, room;
    mul.wide.u32 %rd4, %r1, 4;
    add.s64 %rd5, %rd3, %rd4;
    st.local.u32 [%rd5], %r1;
    ld.local.u32 %r2, [%rd3+4];
    st.global.u32 [%rd2], %r2;
    ret;
}}
"""

primary = 0
kernels: dict[str, c_void_p] = {}
graphs: dict[str, c_void_p] = {}


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


def synchronize() -> None:
    driver.call("cuCtxSynchronize")


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


# ---- pools ----


def pool_keep_all() -> None:
    """Let the default pool keep all that is freed into it."""
    driver.keep_everything(driver.pool())


def pool_trim() -> None:
    driver.trim(driver.pool())


def free_async(pointer: int) -> None:
    """Free in the order of the default stream, without waiting for it."""
    driver.call("cuMemFreeAsync", c_uint64(pointer), None)


# ---- host memory ----


def pin(nbytes: int) -> int:
    """Pin host memory. It counts as if it were the device's: the claim that it is may hold."""
    pointer = c_void_p()
    driver.call("cuMemHostAlloc", byref(pointer), c_size_t(nbytes), c_uint(0))
    return pointer.value or 0


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


# ---- kernels ----


def load_kernels() -> None:
    module = c_void_p()
    driver.call("cuModuleLoadData", byref(module), PTX.encode())
    for name in ("empty", "deep"):
        kernels[name] = c_void_p()
        driver.call("cuModuleGetFunction", byref(kernels[name]), module, name.encode())


def launch_empty(times: int) -> None:
    """Launch an empty kernel again and again, and wait for the last."""
    for _ in range(times):
        _launch(kernels["empty"])
    synchronize()


def launch_deep(out: int) -> None:
    """Launch one thread that needs much local memory, and wait for it."""
    _launch(kernels["deep"], c_uint64(out), c_uint(1))
    synchronize()


def _launch(kernel: c_void_p, *parameters: Any) -> None:
    addresses = (c_void_p * max(1, len(parameters)))(*(ctypes.addressof(value) for value in parameters))
    one = c_uint(1)
    driver.call("cuLaunchKernel", kernel, *(one,) * 6, c_uint(0), None, addresses, None)


# ---- graphs ----


def run_graph(nbytes: int) -> None:
    """Capture a graph that allocates and frees, and launch it once."""
    stream, graph, runnable, pointer = driver.new_stream(), c_void_p(), c_void_p(), c_uint64()
    driver.call("cuStreamBeginCapture_v2", stream, c_int(RELAXED_CAPTURE))
    driver.call("cuMemAllocAsync", byref(pointer), c_size_t(nbytes), stream)
    driver.call("cuMemFreeAsync", pointer, stream)
    driver.call("cuStreamEndCapture", stream, byref(graph))
    driver.call("cuGraphInstantiateWithFlags", byref(runnable), graph, c_uint64(0))
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
    *(driver.alloc, driver.alloc_managed, driver.alloc_async, driver.create, pin, alloc_pitched),
    *(thread_alloc, thread_alloc_and_free, thread_alloc_owned),
    *(alloc_and_forget, alloc_and_fail, fail_and_keep, run_graph),
)
"""The first argument is how many bytes it takes; the result, if any, is what frees them."""

FREE = (driver.free, driver.release, free_async, thread_free, free_behind_work)
"""The first argument is what an operation above returned."""

OTHERS = (
    *(driver.init, context, driver.new_context, destroy_context, driver.reset, synchronize),
    *(driver.free_and_total, driver.alloc_code, driver.free_code, read_code),
    *(driver.fill, start_fill, driver.count_nonzero, count_byte, host_fill, host_count),
    *(pool_keep_all, pool_trim, drop_exception),
    *(driver.ipc_handle, driver.ipc_open, driver.export, driver.dmabuf),
    *(driver.reserve, driver.map_code, driver.unmap),
    *(load_kernels, launch_empty, launch_deep, destroy_graph, trim_graph_memory),
    checkpoint_code,
)

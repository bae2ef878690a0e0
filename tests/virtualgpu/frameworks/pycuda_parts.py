"""PyCUDA."""

from __future__ import annotations

import threading

import numpy
import pycuda.driver as cuda
from program import MIB, PTX, main, part, shows_and_returns, used

cuda.init()
DEVICE = cuda.Device(0)


@part
def plain_memory() -> None:
    """`mem_alloc`, `mem_alloc_pitch`, `memcpy_htod`, `memcpy_dtoh`, `memset_d32`, `mem_get_info`, `free`"""
    context = DEVICE.make_context()
    free, _ = cuda.mem_get_info()
    with shows_and_returns(66 * MIB) as check:
        memory = cuda.mem_alloc(64 * MIB)
        pitched, pitch = cuda.mem_alloc_pitch(1000, 1000, 4)
        check()
        assert pitch >= 1000
        assert free - cuda.mem_get_info()[0] == 66 * MIB
        sent, received = numpy.arange(1024, dtype=numpy.uint32), numpy.empty(1024, dtype=numpy.uint32)
        cuda.memcpy_htod(memory, sent)
        cuda.memcpy_dtoh(received, memory)
        assert (received == sent).all()
        cuda.memset_d32(memory, 7, 1024)
        cuda.memcpy_dtoh(received, memory)
        assert (received == 7).all()
        memory.free()
        pitched.free()
    context.pop()


@part
def arrays() -> None:
    """`gpuarray.to_gpu`, `GPUArray.get`: without arithmetic"""
    from pycuda import gpuarray

    context = DEVICE.make_context()
    with shows_and_returns(16 * MIB) as check:
        sent = numpy.arange(4 * MIB, dtype=numpy.float32)
        array = gpuarray.to_gpu(sent)
        check()
        assert (array.get() == sent).all()
        del array
    context.pop()


@part
def contexts() -> None:
    """`make_context`, `push`, `pop`, `detach`, `retain_primary_context`: each context and what is in it"""
    before = used()
    first = DEVICE.make_context()
    one = used() - before
    second = DEVICE.make_context()
    two = used() - before
    assert two > one > 0
    memory = cuda.mem_alloc(64 * MIB)
    assert used() - before == two + 64 * MIB
    second.pop()
    assert cuda.Context.get_current() == first
    second.push()
    memory.free()
    cuda.Context.pop()
    second.detach()
    assert used() - before == one
    first.pop()
    first.detach()
    primary = DEVICE.retain_primary_context()
    primary.push()
    cuda.mem_alloc(MIB).free()
    cuda.Context.pop()
    # PyCUDA's destructor would call cuCtxDetach, which primary contexts do not have.
    primary.detach()
    assert used() == before


@part
def threads() -> None:
    """One context in several threads, and a context per thread"""
    context = DEVICE.make_context()
    cuda.Context.pop()
    done: list[str] = []

    def in_shared_context() -> None:
        context.push()
        memory = cuda.mem_alloc(4 * MIB)
        memory.free()
        cuda.Context.pop()
        done.append("shared")

    def in_own_context() -> None:
        own = DEVICE.make_context()
        memory = cuda.mem_alloc(4 * MIB)
        memory.free()
        own.pop()
        own.detach()
        done.append("own")

    workers = [threading.Thread(target=work) for work in [in_shared_context, in_own_context] * 2]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(done) == ["own", "own", "shared", "shared"]
    context.detach()


@part
def pinned_memory() -> None:
    """`pagelocked_empty`, `pagelocked_zeros`, `HostAllocation.get_device_pointer`"""
    context = DEVICE.make_context()
    flags = cuda.host_alloc_flags.DEVICEMAP
    pinned = cuda.pagelocked_empty(MIB, numpy.uint8, mem_flags=flags)
    assert pinned.base.get_device_pointer()
    memory = cuda.mem_alloc(MIB)
    pinned[:] = 5
    cuda.memcpy_htod(memory, pinned)
    # register_host_memory of PyCUDA 2026.1 ends the process with NumPy 2, on any GPU.
    received = cuda.pagelocked_zeros(MIB, numpy.uint8)
    cuda.memcpy_dtoh(received, memory)
    assert (received == 5).all()
    memory.free()
    received.base.free()
    pinned.base.free()
    context.pop()


@part
def managed_memory() -> None:
    """`managed_empty`: no device memory until it is used there"""
    context = DEVICE.make_context()
    before = used()
    managed = cuda.managed_empty(4 * MIB, numpy.uint8, mem_flags=cuda.mem_attach_flags.GLOBAL)
    managed[:] = 3
    assert used() == before
    assert (managed == 3).all()
    del managed
    context.pop()


@part
def pools() -> None:
    """`DeviceMemoryPool`, `PageLockedMemoryPool`: held blocks, `free_held`, `stop_holding`"""
    from pycuda.tools import DeviceMemoryPool, PageLockedMemoryPool

    context = DEVICE.make_context()
    pool = DeviceMemoryPool()
    before = used()
    memory = pool.allocate(64 * MIB)
    reserved = used() - before
    assert reserved >= 64 * MIB
    memory.free()
    assert used() - before == reserved
    assert (pool.held_blocks, pool.active_blocks) == (1, 0)
    pool.free_held()
    assert used() == before
    pool.stop_holding()
    pinned = PageLockedMemoryPool().allocate((1024,), numpy.float32)
    pinned[:] = 1
    del pinned
    context.pop()


@part
def streams() -> None:
    """`Stream`, `Event`, `memcpy_htod_async`, `memcpy_dtoh_async`, `wait_for_event`, `time_since`"""
    context = DEVICE.make_context()
    stream, other, start, end = cuda.Stream(), cuda.Stream(), cuda.Event(), cuda.Event()
    pinned = cuda.pagelocked_empty(1024, numpy.float32)
    pinned[:] = 2
    memory = cuda.mem_alloc(pinned.nbytes)
    start.record(stream)
    cuda.memcpy_htod_async(memory, pinned, stream)
    end.record(stream)
    other.wait_for_event(end)
    received = cuda.pagelocked_zeros(1024, numpy.float32)
    cuda.memcpy_dtoh_async(received, memory, other)
    other.synchronize()
    end.synchronize()
    assert (received == 2).all()
    assert end.time_since(start) >= 0
    memory.free()
    context.pop()


@part
def ipc() -> None:
    """`mem_get_ipc_handle`, `IPCMemoryHandle` in another process"""
    import multiprocessing

    context = DEVICE.make_context()
    memory = cuda.mem_alloc(4 * MIB)
    cuda.memcpy_htod(memory, numpy.full(16, 9, numpy.uint8))
    handle = bytes(cuda.mem_get_ipc_handle(memory))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_first_bytes, (handle,)) == [9] * 16
    memory.free()
    context.pop()


def _first_bytes(handle: bytes) -> list[int]:
    context = DEVICE.make_context()
    opened = cuda.IPCMemoryHandle(bytearray(handle))
    received = numpy.empty(16, numpy.uint8)
    cuda.memcpy_dtoh(received, int(opened))
    opened.close()
    context.pop()
    return [int(each) for each in received]


@part
def kernels() -> None:
    """Kernels (`module_from_buffer`, which `SourceModule` and arithmetic of `gpuarray` need)"""
    context = DEVICE.make_context()
    try:
        cuda.module_from_buffer(PTX)
    finally:
        context.pop()


if __name__ == "__main__":
    main()

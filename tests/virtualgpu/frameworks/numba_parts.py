"""Numba (numba-cuda)."""

from __future__ import annotations

import threading

import numpy
from numba import cuda
from program import MIB, PTX, main, part, used


@part
def device_arrays() -> None:
    """`to_device`, `device_array`, `copy_to_host`, `copy_to_device`, views and slices"""
    context = cuda.current_context()
    before = used()
    sent = numpy.arange(16 * MIB, dtype=numpy.uint32)
    array = cuda.to_device(sent)
    assert used() - before == 64 * MIB
    assert (array.copy_to_host() == sent).all()
    assert (array[10:20].copy_to_host() == sent[10:20]).all()
    other = cuda.device_array_like(array)
    other.copy_to_device(array)
    assert (other.copy_to_host() == sent).all()
    del array, other
    context.memory_manager.deallocations.clear()
    assert used() == before


@part
def deferred_deallocation() -> None:
    """Pending deallocations: memory returns when the list is full or cleared; `defer_cleanup`"""
    context = cuda.current_context()
    context.memory_manager.deallocations.clear()
    before = used()
    cuda.device_array(64 * MIB, numpy.uint8)
    assert used() - before == 64 * MIB
    assert len(context.memory_manager.deallocations) == 1
    with cuda.defer_cleanup():
        cuda.device_array(MIB, numpy.uint8)
    context.memory_manager.deallocations.clear()
    assert used() == before


@part
def pinned_and_mapped() -> None:
    """`pinned_array`, `pinned`, `mapped_array`"""
    pinned = cuda.pinned_array(MIB, numpy.uint8)
    pinned[:] = 4
    array = cuda.to_device(pinned)
    assert (array.copy_to_host() == 4).all()
    plain = numpy.zeros(MIB, numpy.uint8)
    with cuda.pinned(plain):
        array.copy_to_host(plain)
    assert (plain == 4).all()
    mapped = cuda.mapped_array(MIB, numpy.uint8)
    mapped[:] = 6
    assert (mapped == 6).all()


@part
def managed_memory() -> None:
    """`managed_array`: no device memory until it is used there"""
    cuda.current_context()
    before = used()
    managed = cuda.managed_array(4 * MIB, numpy.uint8)
    managed[:] = 3
    assert used() == before
    assert (managed == 3).all()


@part
def streams() -> None:
    """`stream`, `event`, asynchronous copies, `elapsed_time`"""
    stream, start, end = cuda.stream(), cuda.event(), cuda.event()
    pinned = cuda.pinned_array(1024, numpy.float32)
    pinned[:] = 2
    start.record(stream)
    array = cuda.to_device(pinned, stream=stream)
    received = array.copy_to_host(stream=stream)
    end.record(stream)
    end.synchronize()
    stream.synchronize()
    assert (received == 2).all()
    assert start.elapsed_time(end) >= 0


@part
def threads() -> None:
    """Device arrays made and released in several threads"""
    cuda.current_context()  # here first: Numba's own first call is not safe in several threads
    done: list[bool] = []

    def work() -> None:
        sent = numpy.arange(1000)
        done.append(bool((cuda.to_device(sent).copy_to_host() == sent).all()))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert done == [True] * 4


@part
def contexts() -> None:
    """`current_context`, `get_memory_info`, `close`: the process holds nothing afterwards"""
    before = used()
    context = cuda.current_context()
    assert used() > before
    info = context.get_memory_info()
    assert 0 < info.free < info.total
    array = cuda.device_array(MIB, numpy.uint8)
    assert array.nbytes == MIB
    del array, context
    cuda.close()
    assert used() <= before + 4 * MIB


@part
def kernels() -> None:
    """Kernels (`@cuda.jit`): the driver refuses the compiled module"""
    cuda.current_context().create_module_ptx(PTX)


if __name__ == "__main__":
    main()

"""Programs that people really use run on the virtual driver, unmodified."""

from __future__ import annotations

from tests.needs import needs
from tests.virtualgpu.programs import result
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

SUCCESS = 0


bindings = needs("cuda.bindings")
core = needs("cuda.core")
numba = needs("numba_cuda")


@bindings
def test_cuda_bindings_finds_every_function_it_calls(virtual_gpu: VirtualGpu) -> None:
    program = """
        from cuda.bindings import driver
        def ok(answer):
            assert answer[0] == 0, answer
            return answer[1] if len(answer) == 2 else answer[1:]
        ok(driver.cuInit(0))
        device = ok(driver.cuDeviceGet(0))
        ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(device))))
        free, total = ok(driver.cuMemGetInfo())
        pool = ok(driver.cuDeviceGetDefaultMemPool(device))
        address = ok(driver.cuMemAllocAsync(64 * MIB, 0))
        ok(driver.cuMemsetD8(address, 9, 3))
        seen = bytearray(3)
        ok(driver.cuMemcpyDtoH(seen, address, 3))
        reserved = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
        held = int(ok(driver.cuMemPoolGetAttribute(pool, reserved)))
        ok(driver.cuMemFreeAsync(address, 0))
        ok(driver.cuStreamSynchronize(0))
        launched = driver.cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)[0]
        cuda.tell([seen.hex(), held, free == ok(driver.cuMemGetInfo())[0], int(launched)])
    """
    assert result(virtual_gpu, program) == ["090909", 64 * MIB, True, 801]


@core
def test_cuda_core_moves_buffers_between_its_memory_resources(virtual_gpu: VirtualGpu) -> None:
    program = """
        import cuda.core as core, numpy
        device = core.Device(0)
        device.set_current()
        stream = device.create_stream()
        first, second = device.allocate(MIB, stream=stream), device.allocate(MIB, stream=stream)
        first.fill(7, stream=stream)
        first.copy_to(second, stream=stream)
        host = core.LegacyPinnedMemoryResource().allocate(MIB)
        second.copy_to(host, stream=stream)
        done = stream.record()
        done.sync()
        same = bool((numpy.from_dlpack(host) == 7).all())
        sizes = []
        own = core.DeviceMemoryResource(device, core.DeviceMemoryResourceOptions(max_size=64 * MIB))
        for resource in (own, core.VirtualMemoryResource(device)):
            buffer = resource.allocate(2 * MIB, stream=stream)
            sizes.append(buffer.size)
            buffer.close(stream)
        [buffer.close(stream) for buffer in (first, second)]
        stream.sync()
        cuda.tell([device.name, same, sizes, done.is_done])
    """
    assert result(virtual_gpu, program) == ["NVIDIA H200 (virtual)", True, [2 * MIB] * 2, True]


@numba
def test_numba_keeps_arrays_on_the_device(virtual_gpu: VirtualGpu) -> None:
    program = """
        import numpy
        from numba import cuda as numba
        numbers = numpy.arange(1000, dtype=numpy.float32)
        there = numba.to_device(numbers)
        square = numba.device_array((10, 10))
        square.copy_to_device(numpy.ones((10, 10)))
        pinned = numba.pinned_array(100, dtype=numpy.int32)
        pinned[:] = 3
        stream = numba.stream()
        streamed = numba.to_device(pinned, stream=stream)
        stream.synchronize()
        managed = numba.managed_array(100, dtype=numpy.int32)
        managed[:] = 4
        sums = [there.copy_to_host().sum(), there[10:20].copy_to_host().sum(), square.copy_to_host().sum(),
                streamed.copy_to_host().sum(), managed.sum()]
        free, total = numba.current_context().get_memory_info()
        numba.close()
        cuda.tell([[int(one) for one in sums], 0 < free < total])
    """
    assert result(virtual_gpu, program) == [[499500, 145, 100, 300, 400], True]

"""cuda.core."""

from __future__ import annotations

import ctypes

from cuda.core import Device, DeviceMemoryResource, DeviceMemoryResourceOptions, LegacyPinnedMemoryResource
from program import MIB, PTX, main, part, used


@part
def buffers() -> None:
    """`Device`, `Device.allocate`, `Buffer.copy_to`, `copy_from`, `fill`, `close`"""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    buffer = device.allocate(MIB, stream=stream)
    pinned = LegacyPinnedMemoryResource().allocate(MIB)
    buffer.fill(7, stream=stream)
    buffer.copy_to(pinned, stream=stream)
    stream.sync()
    assert ctypes.string_at(int(pinned.handle), 4) == b"\7" * 4
    ctypes.memset(int(pinned.handle), 1, MIB)
    buffer.copy_from(pinned, stream=stream)
    stream.sync()
    pinned.close()
    buffer.close()


@part
def pools() -> None:
    """`DeviceMemoryResource` with a pool of its own: memory that shows, stays in the pool, and returns"""
    device = Device()
    device.set_current()
    stream = device.create_stream()
    before = used()
    pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions())
    buffer = pool.allocate(64 * MIB, stream=stream)
    assert used() - before == 64 * MIB
    assert pool.attributes.used_mem_current == 64 * MIB
    buffer.close(stream)
    stream.sync()
    pool.close()
    assert used() == before


@part
def pinned_memory() -> None:
    """`LegacyPinnedMemoryResource`, `PinnedMemoryResource`"""
    from cuda.core import PinnedMemoryResource

    device = Device()
    device.set_current()
    legacy = LegacyPinnedMemoryResource().allocate(MIB)
    assert legacy.is_host_accessible
    legacy.close()
    stream = device.create_stream()
    buffer = PinnedMemoryResource().allocate(MIB, stream=stream)
    buffer.close(stream)


@part
def managed_memory() -> None:
    """`ManagedMemoryResource`"""
    from cuda.core import ManagedMemoryResource

    device = Device()
    device.set_current()
    stream = device.create_stream()
    buffer = ManagedMemoryResource().allocate(MIB, stream=stream)
    stream.sync()
    assert buffer.is_host_accessible
    assert buffer.is_device_accessible
    buffer.close(stream)


@part
def virtual_memory() -> None:
    """`VirtualMemoryResource`: reserved and mapped memory"""
    from cuda.core import VirtualMemoryResource, VirtualMemoryResourceOptions

    device = Device()
    device.set_current()
    before = used()
    resource = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions())
    buffer = resource.allocate(64 * MIB)
    assert used() - before == 64 * MIB
    # cuda.core 1.2 releases one reference of two: the memory returns when the process ends, on any GPU.
    buffer.close()


@part
def streams() -> None:
    """`Stream`, `Event`, `record`, `wait`, elapsed time"""
    from cuda.core import EventOptions

    device = Device()
    device.set_current()
    first, second = device.create_stream(), device.create_stream()
    start = first.record(options=EventOptions(timing_enabled=True))
    end = first.record(options=EventOptions(timing_enabled=True))
    second.wait(end)
    second.sync()
    end.sync()
    assert end - start >= 0


@part
def ipc() -> None:
    """Buffers of a pool with `ipc_enabled`, in another process"""
    import multiprocessing

    multiprocessing.set_start_method("spawn")
    device = Device()
    device.set_current()
    stream = device.create_stream()
    pool = DeviceMemoryResource(device, options=DeviceMemoryResourceOptions(ipc_enabled=True))
    buffer = pool.allocate(MIB, stream=stream)
    buffer.fill(9, stream=stream)
    stream.sync()
    answers = multiprocessing.Queue()
    process = multiprocessing.Process(target=_first_bytes, args=(pool, buffer, answers))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert answers.get() == b"\t" * 4


def _first_bytes(pool: DeviceMemoryResource, buffer: object, answers: object) -> None:
    device = Device()
    device.set_current()
    stream = device.create_stream()
    pinned = LegacyPinnedMemoryResource().allocate(MIB)
    buffer.copy_to(pinned, stream=stream)  # type: ignore[attr-defined]
    stream.sync()
    answers.put(ctypes.string_at(int(pinned.handle), 4))  # type: ignore[attr-defined]


@part
def kernels() -> None:
    """Kernels (`ObjectCode`): the driver refuses the compiled module"""
    from cuda.core import ObjectCode

    device = Device()
    device.set_current()
    ObjectCode.from_ptx(PTX).get_kernel("f")


if __name__ == "__main__":
    main()

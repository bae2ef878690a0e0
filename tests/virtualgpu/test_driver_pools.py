"""Stream-ordered allocation: pools keep memory, reuse it, and release it."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

ASYNC = """
        cuda.start()
        base = cuda.used()
        pool = cuda.out(ctypes.c_uint64, "cuDeviceGetDefaultMemPool", 0)
        def take(nbytes, stream=0):
            return cuda.out(ctypes.c_uint64, "cuMemAllocAsync", nbytes, stream)
        def give(address, stream=0):
            cuda.call("cuMemFreeAsync", address, stream)
        def keep(nbytes):
            cuda.call("cuMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(nbytes)))
        def sync():
            cuda.call("cuStreamSynchronize", 0)
"""


def test_without_a_threshold_memory_returns_at_the_next_synchronisation(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        address = take(GIB)
        held = cuda.used() - base
        give(address)
        freed = cuda.used() - base
        sync()
        cuda.tell([held, freed, cuda.used() - base, cuda.pool_number(pool, 6), cuda.pool_number(pool, 5)])
    """
    )
    assert result(virtual_gpu, program) == [GIB, GIB, 0, GIB, 0]


def test_a_threshold_keeps_memory_until_it_is_trimmed(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        keep(2**64 - 1)
        give(take(GIB))
        sync()
        kept = [cuda.used() - base, cuda.pool_number(pool, 5), cuda.pool_number(pool, 7)]
        cuda.call("cuMemPoolTrimTo", pool, 0)
        cuda.tell([kept, cuda.used() - base, cuda.pool_number(pool, 5)])
    """
    )
    assert result(virtual_gpu, program) == [[GIB, GIB, 0], 0, 0]


def test_trimming_spares_what_is_in_use(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        keep(2**64 - 1)
        live, *dead = [take(64 * MIB) for _ in range(4)]
        cuda.write(live, b"still here")
        [give(address) for address in dead]
        cuda.call("cuMemPoolTrimTo", pool, 128 * MIB)
        some = cuda.pool_number(pool, 5)
        cuda.call("cuMemPoolTrimTo", pool, 0)
        cuda.tell([some, cuda.pool_number(pool, 5), cuda.read(live, 10).decode()])
    """
    )
    assert result(virtual_gpu, program) == [128 * MIB, 64 * MIB, "still here"]


def test_old_bytes_are_handed_on(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        keep(2**64 - 1)
        first = take(MIB)
        cuda.write(first, b"secret")
        give(first)
        sync()
        second = take(MIB)
        cuda.tell([second == first, cuda.read(second, 6).decode()])
    """
    )
    assert result(virtual_gpu, program) == [True, "secret"]


def test_small_requests_are_cut_from_one_chunk(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        many = [take(1000) for _ in range(100)]
        numbers = [cuda.pool_number(pool, attribute) for attribute in (5, 7)]
        cuda.tell([numbers, len({address // 512 for address in many}), cuda.used() - base])
    """
    )
    assert result(virtual_gpu, program) == [[32 * MIB, 100 * 1024], 100, 32 * MIB]


def test_a_pool_of_ones_own_serves_and_ends(virtual_gpu: VirtualGpu) -> None:
    """Destroying it lets live allocations be; the last free gives the memory back."""
    program = (
        ASYNC
        + """
        props = cuda.PoolProps(1, 0, 1, 0, None, 100 * MIB)
        mine = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(props))
        address = cuda.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", 40 * MIB, mine, 0)
        too_much = cuda.code("cuMemAllocFromPoolAsync", ctypes.byref(ctypes.c_uint64()), 80 * MIB, mine, 0)
        cuda.call("cuDeviceSetMemPool", 0, mine)
        cuda.call("cuMemPoolDestroy", mine)
        after = [cuda.used() - base, cuda.out(ctypes.c_uint64, "cuDeviceGetMemPool", 0) == pool]
        give(address)
        cuda.tell([too_much, after, cuda.used() - base, cuda.code("cuMemPoolTrimTo", mine, 0)])
    """
    )
    assert result(virtual_gpu, program) == [2, [64 * MIB, True], 0, 1]


def test_a_pool_gives_way_to_what_it_cannot_serve(virtual_gpu: VirtualGpu) -> None:
    """Free chunks of the wrong size are returned before a request is refused."""
    program = (
        ASYNC
        + """
        keep(2**64 - 1)
        give(take(100 * GIB))
        sync()
        cuda.tell([take(120 * GIB) > 0, cuda.used() - base])
    """
    )
    assert result(virtual_gpu, program) == [True, 120 * GIB]


def test_high_water_marks_can_be_set_back(virtual_gpu: VirtualGpu) -> None:
    program = (
        ASYNC
        + """
        give(take(96 * MIB))
        sync()
        high = [cuda.pool_number(pool, 6), cuda.pool_number(pool, 8)]
        for attribute in (6, 8):
            cuda.call("cuMemPoolSetAttribute", pool, attribute, ctypes.byref(ctypes.c_uint64(0)))
        wrong = cuda.code("cuMemPoolSetAttribute", pool, 6, ctypes.byref(ctypes.c_uint64(5)))
        cuda.tell([high, [cuda.pool_number(pool, 6), cuda.pool_number(pool, 8)], wrong])
    """
    )
    assert result(virtual_gpu, program) == [[96 * MIB, 96 * MIB], [0, 0], 1]


def test_a_reset_leaves_the_pools_memory(virtual_gpu: VirtualGpu) -> None:
    """Allocated and free blocks alike: on an H200 they were in use when no context was left."""
    program = (
        ASYNC
        + """
        keep(2**64 - 1)
        take(GIB)
        give(take(GIB))
        cuda.call("cuDevicePrimaryCtxReset_v2", 0)
        cuda.start()
        kept = [cuda.used() - base, cuda.pool_number(pool, 5)]
        cuda.call("cuMemPoolTrimTo", pool, 0)
        cuda.tell([*kept, cuda.used() - base])
    """
    )
    assert result(virtual_gpu, program) == [2 * GIB, 2 * GIB, GIB]

"""Plain, managed and host memory on the virtual driver: what it costs, holds and remembers."""

from __future__ import annotations

import pytest

from tests.virtualgpu.programs import result, running
from vram.units import GIB, KIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 1, 2, 201

RESERVE = 128 * MIB
"""What the driver takes at once for managed memory."""


def test_small_allocations_share_two_mebibytes(virtual_gpu: VirtualGpu) -> None:
    """Charges move in steps of 2 MiB, and go back when the last neighbour is freed."""
    program = """
        cuda.start()
        base, steps = cuda.used(), []
        small = [cuda.alloc(64 * 1024) for _ in range(32)]
        steps.append(cuda.used() - base)
        small.append(cuda.alloc(512))
        steps.append(cuda.used() - base)
        large = cuda.alloc(2 * MIB + 1)
        steps.append(cuda.used() - base)
        [cuda.call("cuMemFree_v2", address) for address in [*small, large]]
        cuda.tell([steps, cuda.used() - base, len(set(small)), all(a % 512 == 0 for a in small)])
    """
    steps, left, distinct, aligned = result(virtual_gpu, program)
    assert steps == [2 * MIB, 4 * MIB, 8 * MIB]
    assert left == 0
    assert distinct == 33
    assert aligned


def test_sizes_around_a_page_of_their_own_are_returned_whole(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        base = cuda.used()
        for nbytes in (1, 511, 513, MIB - 513, MIB - 512, MIB - 1, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB):
            address = cuda.alloc(nbytes)
            cuda.write(address + nbytes - 1, b"x")
            cuda.call("cuMemFree_v2", address)
        cuda.tell(cuda.used() - base)
    """
    assert result(virtual_gpu, program) == 0


def test_only_a_small_piece_beside_a_living_one_has_old_bytes(virtual_gpu: VirtualGpu) -> None:
    """As on an H200: of pieces up to 1 MiB every byte, of larger ones and of those that were alone none."""
    program = """
        cuda.start()
        sizes = (256, 1000, 4096, 65536, MIB, 3 * MIB // 2, 8 * MIB)
        def old(nbytes):
            first = cuda.alloc(nbytes)
            cuda.call("cuMemsetD8_v2", first, 0xAB, nbytes)
            cuda.call("cuMemFree_v2", first)
            second = cuda.alloc(nbytes)
            found = sum(each == 0xAB for each in cuda.read(second, nbytes))
            cuda.call("cuMemFree_v2", second)
            return found
        alone = [old(nbytes) for nbytes in sizes]
        keep = cuda.alloc(512)
        cuda.tell([alone, [old(nbytes) for nbytes in sizes]])
    """
    alone, beside = result(virtual_gpu, program)
    assert alone == [0] * 7
    assert beside == [256, 1000, 4096, 65536, MIB, 0, 0]


def test_more_than_there_is_is_out_of_memory_and_leaves_all_as_it_was(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        base, where = cuda.used(), ctypes.byref(ctypes.c_uint64())
        answers = [cuda.code("cuMemAlloc_v2", where, nbytes) for nbytes in (2**47, 200 * GIB, 140 * GIB)]
        cuda.tell([answers, cuda.used() - base, cuda.code("cuMemAlloc_v2", where, 0)])
    """
    assert result(virtual_gpu, program) == [[OUT_OF_MEMORY] * 3, 0, INVALID_VALUE]


def test_a_hundred_gibibytes_cost_the_host_nothing_until_touched(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        address = cuda.alloc(100 * GIB)
        cuda.write(address + 99 * GIB, b"far away")
        status = open("/proc/self/status").read()
        resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        cuda.tell([cuda.read(address + 99 * GIB, 8).decode(), resident])
    """
    text, resident_kib = result(virtual_gpu, program)
    assert text == "far away"
    assert resident_kib < 200 * 1024


def test_copies_move_bytes_in_every_direction(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        a, b = cuda.alloc(4096), cuda.alloc(4096)
        data = bytes(range(256)) * 16
        stream = cuda.out(ctypes.c_uint64, "cuStreamCreate", 1)
        cuda.call("cuMemcpyHtoDAsync_v2", a, data, 4096, stream)
        cuda.call("cuMemcpyDtoDAsync_v2", b, a, 4096, stream)
        buffer = ctypes.create_string_buffer(4096)
        cuda.call("cuMemcpyDtoHAsync_v2", buffer, b, 4096, stream)
        cuda.call("cuStreamSynchronize", stream)
        seen = [buffer.raw == data]
        cuda.call("cuMemcpy", a, b + 1, 4095)
        seen.append(cuda.read(a, 4095) == data[1:])
        cuda.call("cuMemcpyAsync", a, ctypes.addressof(buffer), 16, 0)
        seen.append(cuda.read(a, 16) == data[:16])
        cuda.tell(seen)
    """
    assert result(virtual_gpu, program) == [True] * 3


def test_rectangles_and_boxes_keep_what_lies_around_them(virtual_gpu: VirtualGpu) -> None:
    """A 2D copy of 3x2 bytes into pitched memory, and a 3D one out of it, by their real structures."""
    program = """
        import struct
        cuda.start()
        pitch, address = ctypes.c_size_t(), ctypes.c_uint64()
        cuda.call("cuMemAllocPitch_v2", ctypes.byref(address), ctypes.byref(pitch), 100, 10, 4)
        p = pitch.value
        source = ctypes.create_string_buffer(b"abcdefgh", 8)
        cuda.call("cuMemsetD2D8_v2", address, p, ord("."), 100, 10)
        side = "QQi4xQQQQ"
        copy = struct.pack("<" + side + side + "QQ",
            1, 0, 1, ctypes.addressof(source), 0, 0, 4,
            5, 2, 2, 0, address.value, 0, p,
            3, 2)
        cuda.call("cuMemcpy2D_v2", copy)
        rows = [cuda.read(address.value + y * p, 12).decode() for y in range(1, 5)]
        side = "QQQQi4xQQQQQQ"
        out = ctypes.create_string_buffer(16)
        copy = struct.pack("<" + side + side + "QQQ",
            5, 2, 0, 0, 2, 0, address.value, 0, 0, p, 2,
            0, 0, 0, 0, 1, ctypes.addressof(out), 0, 0, 0, 4, 2,
            3, 2, 2)
        cuda.call("cuMemcpy3D_v2", copy)
        cuda.tell([p % 512, rows, out.raw.decode(errors="replace")])
    """
    pitch_rest, rows, out = result(virtual_gpu, program)
    assert pitch_rest == 0
    assert rows == ["............", ".....bcd....", ".....fgh....", "............"]
    assert out == "bcd\0fgh\0...\0...\0"


def test_sets_write_their_pattern_and_nothing_else(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        address = cuda.alloc(64)
        cuda.call("cuMemsetD32_v2", address, 0x04030201, 2)
        cuda.call("cuMemsetD16Async", address + 8, 0x0605, 3, 0)
        cuda.call("cuMemsetD2D16_v2", address + 16, 8, 0x0807, 1, 2)
        cuda.tell([cuda.read(address, 32).hex(), cuda.code("cuMemsetD32_v2", address + 1, 0, 1),
                   cuda.code("cuMemsetD8_v2", address, 0, 4096)])
    """
    text, misaligned, beyond = result(virtual_gpu, program)
    assert text == "0102030401020304" + "050605060506" + "0000" + "0708000000000000" + "0708000000000000"
    assert misaligned == INVALID_VALUE
    assert beyond == INVALID_VALUE


def test_wrong_addresses_are_refused_not_followed(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        address = cuda.alloc(MIB)
        byte = ctypes.create_string_buffer(1)
        cuda.tell([
            cuda.code("cuMemcpyHtoD_v2", 0x1000, byte, 1),
            cuda.code("cuMemcpyDtoH_v2", byte, address + MIB, 1),
            cuda.code("cuMemFree_v2", address + 512),
            cuda.code("cuMemFree_v2", 0),
            cuda.code("cuMemFree_v2", address),
            cuda.code("cuMemFree_v2", address),
        ])
    """
    bad = INVALID_VALUE
    assert result(virtual_gpu, program) == [bad, bad, bad, 0, 0, bad]


def test_without_a_context_there_is_no_memory(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.call("cuInit", 0)
        cuda.tell(cuda.code("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), MIB))
    """
    assert result(virtual_gpu, program) == INVALID_CONTEXT


def test_managed_memory_counts_on_the_device_from_its_first_prefetch_on(virtual_gpu: VirtualGpu) -> None:
    """A prefetch to the host moves the data back and returns nothing: the free does. As on an H200."""
    program = """
        cuda.start()
        base = cuda.used()
        address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", 10 * MIB, 1)
        ctypes.memset(address, 7, 100)
        seen = [cuda.used() - base]
        cuda.call("cuMemPrefetchAsync", address + 3 * MIB, 1, ctypes.c_int(0), 0)
        seen.append(cuda.used() - base)
        for device in (0, 0, -1):
            cuda.call("cuMemPrefetchAsync", address, 10 * MIB, ctypes.c_int(device), 0)
            seen.append(cuda.used() - base)
        data = cuda.read(address, 2).hex()
        cuda.call("cuMemFree_v2", address)
        cuda.tell([seen, data, cuda.used() - base])
    """
    seen, data, left = result(virtual_gpu, program)
    assert seen == [0, RESERVE, RESERVE, RESERVE, RESERVE]
    assert data == "0707"
    assert left == RESERVE - 10 * MIB


def test_managed_memory_is_taken_in_steps_that_all_processes_share(virtual_gpu: VirtualGpu) -> None:
    """Measured on an H200: 4 MiB take 128, the next 4 MiB none, and what is freed goes back to the GPU."""
    program = """
        cuda.start()
        base, seen = cuda.used(), []
        def note(*unused):
            seen.append((cuda.used() - base) // MIB)
        def written(nbytes):
            address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", nbytes, 1)
            note(cuda.call("cuMemsetD8_v2", address, 1, nbytes))
            return address
        first, second = written(4 * MIB), written(4 * MIB)
        note(cuda.call("cuMemFree_v2", first))
        note(cuda.call("cuMemFree_v2", second))
        note(cuda.call("cuMemFree_v2", written(200 * MIB)))
        cuda.tell(seen)
    """
    steps = [128, 128, 124, 120, 248, 48]
    assert result(virtual_gpu, program) == steps
    assert result(virtual_gpu, program) == steps  # the reserve went with the last process


def test_what_managed_memory_leaves_stays_beside_a_living_process(virtual_gpu: VirtualGpu) -> None:
    """Measured on an H200: 124, 60 and 116 MiB after processes that touched 4, 64 and 200 MiB had ended."""
    stays = "cuda.start(); cuda.tell(cuda.used())\nfor _ in sys.stdin: cuda.tell(cuda.used())"
    touch = """
        cuda.start()
        address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", NBYTES, 1)
        cuda.tell(cuda.call("cuMemsetD8_v2", address, 1, NBYTES))
    """
    with running(virtual_gpu, stays) as living:
        base, left = living.told(), []
        for mib in (4, 64, 200):
            result(virtual_gpu, touch.replace("NBYTES", str(mib * MIB)))
            living.go()
            left.append((living.told() - base) // MIB)
    assert left == [124, 60, 116]
    assert (
        result(virtual_gpu, "cuda.start(); cuda.tell(cuda.used())") == base
    )  # it went with the last process


def test_streams_cost_memory_of_their_context(virtual_gpu: VirtualGpu) -> None:
    """2 MiB for every four beyond the first, for as many as were alive at once. Measured."""
    program = """
        cuda.start()
        base, seen = cuda.used(), []
        for _ in range(50):
            cuda.call("cuStreamDestroy_v2", cuda.out(ctypes.c_uint64, "cuStreamCreate", 0))
        for count in range(1, 11):
            cuda.out(ctypes.c_uint64, "cuStreamCreate", 1)
            seen.append((cuda.used() - base) // MIB)
        cuda.call("cuDevicePrimaryCtxReset_v2", 0)
        cuda.start()
        cuda.tell([seen, cuda.used() - base])
    """
    assert result(virtual_gpu, program) == [[0, 2, 2, 2, 2, 4, 4, 4, 4, 6], 0]


def test_managed_memory_is_the_devices_once_it_writes_there(virtual_gpu: VirtualGpu) -> None:
    """What the host does meanwhile moves nothing; what the device reads stays where it lies."""
    program = """
        cuda.start()
        base = cuda.used()
        address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", 16 * MIB, 1)
        seen = []
        def note(*unused):
            seen.append((cuda.used() - base) // MIB)
        note(cuda.read(address, 16 * MIB))
        note(cuda.call("cuMemsetD8_v2", address, 1, 2 * MIB))
        note(cuda.write(address + 4 * MIB - 1, b"ab"))
        note(cuda.call("cuMemcpy", address + 8 * MIB, address, 1))
        note(cuda.call("cuMemsetD2D8_v2", address + 10 * MIB, 2 * MIB, 2, 1, 2))
        note(ctypes.memset(address, 7, 16 * MIB))
        note(cuda.call("cuMemFree_v2", address))
        cuda.tell(seen)
    """
    assert result(virtual_gpu, program) == [0, 128, 128, 128, 128, 128, 128 - 12]


def test_managed_memory_beyond_the_gpus_stays_with_the_host(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(total_bytes=2 * GIB)
    program = """
        cuda.start()
        base = cuda.used()
        address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", 4 * GIB, 1)
        cuda.write(address, b"first")
        codes = [cuda.code("cuMemPrefetchAsync", address, 4 * GIB, ctypes.c_int(0), 0)]
        codes.append(cuda.code("cuMemsetD8_v2", address + 3 * GIB, 1, 1))
        cuda.tell([codes, cuda.used() - base, cuda.read(address, 5).decode()])
    """
    assert result(virtual_gpu, program) == [[OUT_OF_MEMORY, 0], RESERVE, "first"]


def test_pinned_and_registered_memory_is_known_to_the_device(virtual_gpu: VirtualGpu) -> None:
    program = """
        cuda.start()
        base = cuda.used()
        pinned = cuda.out(ctypes.c_uint64, "cuMemHostAlloc", 8192, 4)
        flags = cuda.out(ctypes.c_uint, "cuMemHostGetFlags", pinned)
        mapped = cuda.out(ctypes.c_uint64, "cuMemHostGetDevicePointer_v2", pinned, 0)
        mine = ctypes.create_string_buffer(8192)
        place = ctypes.addressof(mine)
        cuda.call("cuMemHostRegister_v2", place, 8192, 0)
        answers = [
            cuda.code("cuMemHostRegister_v2", place, 8192, 0),
            cuda.code("cuMemFreeHost", place),
            cuda.code("cuMemHostUnregister", pinned),
            cuda.code("cuMemHostUnregister", place),
            cuda.code("cuMemHostUnregister", place),
            cuda.code("cuMemFreeHost", pinned),
        ]
        cuda.tell([flags, mapped == pinned, answers, cuda.used() - base])
    """
    flags, same, answers, charged = result(virtual_gpu, program)
    assert flags == 4 | 2
    assert same
    assert answers == [712, 1, 713, 0, 713, 0]
    assert charged == 0


def test_pointers_know_what_they_are(virtual_gpu: VirtualGpu) -> None:
    program = """
        context = cuda.start()
        plain, managed = cuda.alloc(MIB), cuda.out(ctypes.c_uint64, "cuMemAllocManaged", MIB, 1)
        pinned = cuda.out(ctypes.c_uint64, "cuMemAllocHost_v2", MIB)
        def ask(attribute, address):
            value = ctypes.c_uint64()
            cuda.call("cuPointerGetAttribute", ctypes.byref(value), attribute, address)
            return value.value
        unknown = [ctypes.c_uint64(9), ctypes.c_uint64(9)]
        places = (ctypes.c_void_p * 2)(*map(ctypes.addressof, unknown))
        cuda.call("cuPointerGetAttributes", 2, (ctypes.c_int * 2)(1, 12), places, 0x1000)
        cuda.tell([
            [ask(2, address) for address in (plain, managed, pinned)],
            [ask(8, address) for address in (plain, managed, pinned)],
            [ask(1, plain) == context, ask(11, plain + 5) == plain],
            [ask(12, plain), ask(19, plain) % (2 * MIB)],
            cuda.code("cuPointerGetAttribute", ctypes.byref(ctypes.c_uint64()), 2, 0x1000),
            [value.value for value in unknown],
        ])
    """
    types, is_managed, same, sizes, unknown, plural = result(virtual_gpu, program)
    assert types == [2, 2, 1]
    assert is_managed == [0, 1, 0]
    assert same == [True, True]
    assert sizes == [MIB, 0]
    assert unknown == INVALID_VALUE
    assert plural == [0, 0], "asked in bulk, an unknown address is no error"


def test_two_contexts_keep_their_memory_apart(virtual_gpu: VirtualGpu) -> None:
    """Destroying a context frees what was made in it, and only that; its handle then says so."""
    program = """
        primary = cuda.start()
        cuda.alloc(GIB)
        base = cuda.used()
        made = cuda.out(ctypes.c_uint64, "cuCtxCreate_v2", 0, 0)
        cuda.alloc(2 * GIB)
        cuda.out(ctypes.c_uint64, "cuStreamCreate", 0)
        with_both = cuda.used()
        cuda.call("cuCtxDestroy_v2", made)
        current = cuda.out(ctypes.c_uint64, "cuCtxGetCurrent")
        stale = cuda.code("cuCtxSetCurrent", made)
        cuda.tell([with_both - base, cuda.used() - base, current == primary, stale])
    """
    context = 523 * MIB + 576 * KIB
    assert result(virtual_gpu, program) == [2 * GIB + context, 0, True, 709]


def test_each_gpu_keeps_its_own_books(two_virtual_gpus: VirtualGpu) -> None:
    program = """
        first = cuda.start(0)
        cuda.alloc(GIB)
        one = cuda.used()
        second = cuda.start(1)
        two = cuda.used()
        cuda.alloc(3 * GIB)
        three = cuda.used()
        cuda.call("cuCtxSetCurrent", first)
        cuda.tell([cuda.used() - one, three - two, cuda.out(ctypes.c_int, "cuDeviceCanAccessPeer", 0, 1)])
    """
    assert result(two_virtual_gpus, program) == [0, 3 * GIB, 1]


def test_an_exclusive_gpu_admits_one_process(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.set(compute_mode="exclusive_process")
    program = """
        cuda.start()
        import subprocess
        other = "from libcuda import *; lib.cuInit(0); print(code('cuDevicePrimaryCtxRetain', bytes(8), 0))"
        answer = subprocess.run([sys.executable, "-c", other], capture_output=True, text=True).stdout
        cuda.tell(int(answer))
    """
    assert result(virtual_gpu, program) == 46

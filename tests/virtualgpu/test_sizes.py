"""Sizes that no number can hold, or that lead out of an allocation: refused, and nothing is taken for them.

The virtual driver answers OUT_OF_MEMORY where memory is asked for, and INVALID_VALUE where a range leads out
of what there is. Plain, pitched, pinned, pooled, reserved and created memory was asked for on an H200 too
(580.159.04): the same answers, but for 512 x (2^55+1), which succeeds there because the product wraps around.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.virtualgpu.conftest import Hold, ask
from tests.virtualgpu.programs import result, running
from vram.host.local.proc_scan import NativeScan
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

pytestmark = pytest.mark.native

OK, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE, NOT_SUPPORTED = 0, 1, 2, 100, 801

# What a row may use: see SETUP. Each is one call, by its name and its arguments.
CALLS = {
    "memory of 2^64-1": (OUT_OF_MEMORY, '"cuMemAlloc_v2", out, TOP'),
    "memory of 2^64-512": (OUT_OF_MEMORY, '"cuMemAlloc_v2", out, TOP - 511'),
    "memory of 2^63": (OUT_OF_MEMORY, '"cuMemAlloc_v2", out, 2**63'),
    "512 x (2^55+1)": (OUT_OF_MEMORY, '"cuMemAllocPitch_v2", out, out2, 512, 2**55 + 1, 4'),
    "a row of 2^64-1": (INVALID_VALUE, '"cuMemAllocPitch_v2", out, out2, TOP, 1, 4'),
    "2^32 x 2^32": (INVALID_VALUE, '"cuMemAllocPitch_v2", out, out2, 2**32, 2**32, 4'),
    "managed 2^64-1": (OUT_OF_MEMORY, '"cuMemAllocManaged", out, TOP, 1'),
    "managed 2^63": (OUT_OF_MEMORY, '"cuMemAllocManaged", out, 2**63, 1'),
    "managed 64 TiB": (OUT_OF_MEMORY, '"cuMemAllocManaged", out, 2**46, 1'),
    "pinned 2^64-1": (OUT_OF_MEMORY, '"cuMemHostAlloc", out, TOP, 0'),
    "registered 2^64-1": (INVALID_VALUE, '"cuMemHostRegister_v2", host, TOP, 0'),
    "async 2^64-1": (OUT_OF_MEMORY, '"cuMemAllocAsync", out, TOP, 0'),
    "async 2^64-512": (OUT_OF_MEMORY, '"cuMemAllocAsync", out, TOP - 511, 0'),
    "of a pool with a limit": (OUT_OF_MEMORY, '"cuMemAllocFromPoolAsync", out, TOP - 511, limited, 0'),
    "of a host pool": (OUT_OF_MEMORY, '"cuMemAllocFromPoolAsync", out, TOP - 511, of_host, 0'),
    "of a host pool, 2^63": (OUT_OF_MEMORY, '"cuMemAllocFromPoolAsync", out, 2**63, of_host, 0'),
    "trim to 2^64-1": (OK, '"cuMemPoolTrimTo", limited, TOP'),
    "threshold of 2^64-1": (OK, '"cuMemPoolSetAttribute", limited, 4, ctypes.byref(ctypes.c_uint64(TOP))'),
    "reserve 2^64-2MiB": (OUT_OF_MEMORY, '"cuMemAddressReserve", out, TOP + 1 - PAGE, 0, 0, 0'),
    "reserve at 2^63": (OUT_OF_MEMORY, '"cuMemAddressReserve", out, PAGE, 2**63, 0, 0'),
    "reserve 2^63 at 2^63": (OUT_OF_MEMORY, '"cuMemAddressReserve", out, 2**63, 2**63, 0, 0'),
    "create 2^64-2MiB": (OUT_OF_MEMORY, '"cuMemCreate", out, TOP + 1 - PAGE, prop, 0'),
    "map at the end of all addresses": (INVALID_VALUE, '"cuMemMap", TOP + 1 - PAGE, PAGE, 0, handle, 0'),
    "map an offset": (INVALID_VALUE, '"cuMemMap", reserved, PAGE, TOP + 1 - PAGE, handle, 0'),
    "unmap around": (INVALID_VALUE, '"cuMemUnmap", mapped, TOP + 1 - PAGE'),
    "access around": (INVALID_VALUE, '"cuMemSetAccess", mapped, TOP + 1 - PAGE, access, 1'),
    "free reserved around": (INVALID_VALUE, '"cuMemAddressFree", reserved, TOP + 1 - PAGE'),
    "copy in around": (INVALID_VALUE, '"cuMemcpyHtoD_v2", plain, host, TOP'),
    "copy out around": (INVALID_VALUE, '"cuMemcpyDtoH_v2", host, plain, TOP - plain'),
    "copy across around": (INVALID_VALUE, '"cuMemcpyDtoD_v2", plain, mapped, TOP'),
    "copy by unified address": (INVALID_VALUE, '"cuMemcpy", plain, host, 2 * PAGE'),
    "copy to the end of all": (INVALID_VALUE, '"cuMemcpy", plain, host, TOP - plain + 1'),
    "batch around": (
        INVALID_VALUE,
        '"cuMemcpyBatchAsync_v2", one(plain), one(host), one(TOP), 1, 0, 0, 0, 0',
    ),
    "2D with a row of 2^63": (INVALID_VALUE, '"cuMemcpy2D_v2", copy2d(height=3, pitch=2**63)'),
    "2D of 2^60 rows": (INVALID_VALUE, '"cuMemcpy2D_v2", copy2d(height=2**60, pitch=2**10)'),
    "2D from y 2^62": (INVALID_VALUE, '"cuMemcpy2D_v2", copy2d(y=2**62, pitch=2**10)'),
    "2D from x 2^64-1": (INVALID_VALUE, '"cuMemcpy2D_v2", copy2d(x=TOP, pitch=0)'),
    "3D of 2^62 slices": (INVALID_VALUE, '"cuMemcpy3D_v2", copy3d(depth=2**62, rows=2**20)'),
    "3D of slices of 2^63": (INVALID_VALUE, '"cuMemcpy3D_v2", copy3d(depth=3, rows=2**53)'),
    "3D that fits": (OK, '"cuMemcpy3D_v2", copy3d(depth=3, rows=2)'),
    "fill 2^62+1 words": (INVALID_VALUE, '"cuMemsetD32_v2", plain, 7, 2**62 + 1'),
    "fill 2^63 halves": (INVALID_VALUE, '"cuMemsetD16_v2", plain, 7, 2**63'),
    "fill rows 2^63 apart": (INVALID_VALUE, '"cuMemsetD2D32_v2", plain, 2**63, 7, 4, 3'),
    "fill rows of 2^62+1": (INVALID_VALUE, '"cuMemsetD2D32_v2", plain, TOP, 7, 2**62 + 1, 1'),
    "fill 2^61 rows": (INVALID_VALUE, '"cuMemsetD2D8_v2", plain, 8, 7, 8, 2**61 + 1'),
    "prefetch around": (INVALID_VALUE, '"cuMemPrefetchAsync", managed, TOP - PAGE, 0, 0'),
    "prefetch from the middle": (INVALID_VALUE, '"cuMemPrefetchAsync", managed + 8, TOP - 4, 0, 0'),
    "advise around": (INVALID_VALUE, '"cuMemAdvise", managed + 8, TOP - 4, 1, 0'),
    "attribute around": (INVALID_VALUE, '"cuMemRangeGetAttribute", out, 4, 1, managed + 8, TOP - 4'),
    "dma-buf around": (INVALID_VALUE, '"cuMemGetHandleForAddressRange", out, plain, TOP - 4095, 1, 0'),
    "dma-buf of more": (INVALID_VALUE, '"cuMemGetHandleForAddressRange", out, plain, 2 * PAGE, 1, 0'),
    "array": (NOT_SUPPORTED, '"cuArray3DCreate_v2", out, out2'),
    "a limit of 2^64-1": (OK, '"cuCtxSetLimit", 2, TOP'),
}

SETUP = """
    PAGE, TOP = 2 * MIB, 2**64 - 1
    cuda.start()
    out, out2 = (ctypes.byref(ctypes.c_uint64(0)) for _ in "12")
    host = ctypes.create_string_buffer(2 * PAGE)
    plain = cuda.alloc(PAGE)
    managed = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", PAGE, 1)
    handle = cuda.create(PAGE)
    mapped = cuda.map_whole(cuda.create(PAGE), PAGE)
    reserved = cuda.reserve(PAGE)
    prop = ctypes.byref(cuda.Prop(1, 1, 1, 0))
    access = (ctypes.c_int * 3)(1, 0, 3)
    limits = cuda.PoolProps(1, 0, 1, 0, None, 4 * PAGE)
    limited = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(limits))
    of_host = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(cuda.PoolProps(1, 0, 2, 0)))

    def one(value):
        value = ctypes.cast(value, ctypes.c_void_p).value if value is host else value
        return (ctypes.c_uint64 * 1)(value)

    def copy2d(x=0, y=0, height=1, pitch=64):
        side = [x, y, 2, 0, plain, 0, pitch]
        return (ctypes.c_uint64 * 16)(*side, *side, 64, height)

    def copy3d(depth, rows):
        side = [0, 0, 0, 0, 2, 0, plain, 0, 0, 1024, rows]
        return (ctypes.c_uint64 * 25)(*side, *side, 64, 2, depth)

    def state():
        with open("/proc/self/maps") as maps:
            return [cuda.used(), len(os.listdir("/proc/self/fd")), sum(1 for _ in maps)]

    def all_codes():
        return [cuda.code(*arguments()) for arguments in ROWS]

    cuda.code("cuMemAllocAsync", out, 4096, 0)  # the pool's own chunk comes first, and stays
    rounds = []
    for _ in range(10):
        before = state()
        codes = all_codes()
        rounds.append([before, state()])
    cuda.write(plain, b"still here")
    cuda.tell([codes, rounds, cuda.read(plain, 10).decode()])
"""


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, Any]]:
    """What one process was answered to all of the calls, and what it held before and after them."""
    with VirtualGpu.create() as gpu:
        rows = "".join(f"lambda: ({arguments},), " for _, arguments in CALLS.values())
        codes, rounds, text = result(gpu, SETUP.replace("ROWS", f"[{rows}]"))
        yield {"codes": dict(zip(CALLS, codes, strict=True)), "rounds": rounds, "text": text}


@pytest.mark.parametrize("call", CALLS)
def test_a_size_without_a_number_is_refused(answers: dict[str, Any], call: str) -> None:
    assert answers["codes"][call] == CALLS[call][0]


def test_what_was_refused_took_nothing(answers: dict[str, Any]) -> None:
    """A call that takes something takes it in every round; in some, Python's allocator, a sanitizer's or a
    thread that has just started maps memory of its own.
    """
    assert any(before == after for before, after in answers["rounds"]), answers["rounds"]
    assert answers["text"] == "still here"


# ---- handles and descriptors that come from another process ----

HANDLE = struct.Struct("=8sIIQQII24s")  # an IPC handle: place, pid, object, offset, pages, begin
POINTER = struct.Struct("=8sQQQQIII12s")  # an exported pointer: object, offset, begin, nbytes, pages
EXPORT = struct.Struct("=8sIIIIQQQ32s256s")  # an export's file: object, nbytes, offset, and its maker's names

MAKER = """
    cuda.start()
    PAGE = 2 * MIB
    handle, pointer = cuda.Opaque64(), cuda.Opaque64()
    cuda.call("cuIpcGetMemHandle", ctypes.byref(handle), cuda.alloc(PAGE))
    pool = cuda.out(ctypes.c_uint64, "cuMemPoolCreate", ctypes.byref(cuda.PoolProps(1, 1, 1, 0)))
    piece = cuda.out(ctypes.c_uint64, "cuMemAllocFromPoolAsync", PAGE, pool, 0)
    cuda.call("cuMemPoolExportPointer", ctypes.byref(pointer), piece)
    of_pool = cuda.out(ctypes.c_int, "cuMemPoolExportToShareableHandle", pool, 1, 0)
    of_memory = cuda.export(cuda.create(PAGE))
    export = os.pread(of_memory, 336, 0)
    cuda.tell([bytes(handle).hex(), bytes(pointer).hex(), export.hex(), os.getpid(), of_pool])
    cuda.heard()
"""

IMPORTER = """
    cuda.start()
    used = cuda.used()
    handles, pointers, exports, maker, of_pool = ARGUMENTS

    def opened(text):
        handle = cuda.Opaque64.from_buffer_copy(bytes.fromhex(text))
        return cuda.lib.cuIpcOpenMemHandle_v2(ctypes.byref(ctypes.c_uint64()), handle, ctypes.c_uint(1))

    def imported(text):
        data = cuda.Opaque64.from_buffer_copy(bytes.fromhex(text))
        return cuda.code("cuMemPoolImportPointer", ctypes.byref(ctypes.c_uint64()), pool, ctypes.byref(data))

    def adopted(text):
        file = os.memfd_create("forged")
        os.write(file, bytes.fromhex(text))
        return cuda.code("cuMemImportFromShareableHandle", ctypes.byref(ctypes.c_uint64()), file, 1)

    descriptor = os.open(f"/proc/{maker}/fd/{of_pool}", os.O_RDONLY)
    pool = cuda.out(ctypes.c_uint64, "cuMemPoolImportFromShareableHandle", descriptor, 1, 0)
    codes = [*map(opened, handles), *map(imported, pointers), *map(adopted, exports)]
    cuda.tell([codes, cuda.used() - used])
"""


def changed(layout: struct.Struct, whole: bytes, **fields: int) -> str:
    values = list(layout.unpack(whole))
    for field, value in fields.items():
        values[int(field[1:])] = value
    return layout.pack(*values).hex()


def test_forged_sizes_of_handles_are_refused(virtual_gpu: VirtualGpu) -> None:
    """Whoever passes a handle on may have changed it: only what the folder has is opened."""
    with running(virtual_gpu, MAKER) as maker:
        *texts, pid, pool = maker.told()
        handle, pointer, export = map(bytes.fromhex, texts)
        arguments = (
            [
                changed(HANDLE, handle, _5=2**32 - 1),  # pages
                changed(HANDLE, handle, _5=0),
                changed(HANDLE, handle, _6=2**32 - 1),  # where the allocation begins
                changed(HANDLE, handle, _4=2**64 - 2 * MIB),  # where the bytes are
                changed(HANDLE, handle, _4=4096),
            ],
            [
                changed(POINTER, pointer, _3=2**64 - 512),
                changed(POINTER, pointer, _4=2**64 - 1),
                changed(POINTER, pointer, _4=0),
                changed(POINTER, pointer, _5=2**32 - 1),
                changed(POINTER, pointer, _2=2**63),
            ],
            [
                changed(EXPORT, export, _6=2**64 - 2 * MIB),
                changed(EXPORT, export, _6=0),
                changed(EXPORT, export, _7=2**64 - 2 * MIB),
            ],
            pid,
            pool,
        )
        codes, more = result(virtual_gpu, IMPORTER.replace("ARGUMENTS", repr(arguments)))
        assert codes == [INVALID_VALUE] * 13
        assert more == 0


# ---- files ----

UNUSABLE = [
    "total_bytes = 99999999999999999999",
    "total_bytes = 1152921504606846977",
    "total_bytes = -1",
    "total_bytes = 80 GiB",
    "total_bytes = many",
    "gpu0.reserved_bytes = 0x",
    "retired_pages = 4294967296",
    "ecc_enabled = 2",
    "gpus = 65",
    "gpus = -1",
    "cuda_version = 4294967296",
    "mig_device = 16 0 1 1 1073741824 1g.1gb",
    "mig_device = 1 0 1 1 99999999999999999999 1g.1gb",
    "mig_device = 1 0 1",
]
HARMLESS = ["invented_later = 99999999999999999999", "gpu64.total_bytes = 1", "total_bytes = 0x40000000 "]


@pytest.mark.parametrize("line", [*UNUSABLE, *HARMLESS])
def test_a_config_that_is_out_of_range_is_no_gpu(virtual_gpu: VirtualGpu, line: str) -> None:
    with (virtual_gpu.folder / "config").open("a") as config:
        config.write(f"{line}\n")
    program = """
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        cuda.tell([cuda.code("cuInit", 0), nvml.nvmlInit_v2()])
    """
    assert result(virtual_gpu, program) == ([0, 0] if line in HARMLESS else [NO_DEVICE, 9])


PRIVATE_BYTES = 88  # where struct store_client has them


def test_totals_of_a_damaged_file_do_not_wrap(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    hold(virtual_gpu, 64 * MIB)
    (client,) = (path for path in (virtual_gpu.folder / "dev").iterdir() if path.name.startswith("nvidia0."))
    with client.open("r+b") as file:
        file.seek(PRIVATE_BYTES)
        file.write(struct.pack("=QQ", 2**64 - 1, 2**64 - 1))
    total, _reserved, free, used = ask(virtual_gpu, "memory()")["v2"]
    assert (free, used) == (0, 2**64 - 1)
    assert total == 143771 * MIB


# ---- the scan of /proc ----


@pytest.fixture
def scan() -> Any:
    return NativeScan()._library


def test_more_processes_than_memory_can_list(scan: Any, tmp_path: Path) -> None:
    empty, result = bytes(2), ctypes.create_string_buffer(64)
    limits = (ctypes.c_uint32 * 2)(1, 1)
    for count in (2**62, 2**62 + 1, 2**64 - 1):
        arguments = (
            b"/proc",
            empty,
            None,
            limits,
            ctypes.c_uint64(count),
            ctypes.c_uint64(0),
            limits,
            result,
        )
        assert scan.vramscan_scan(*arguments) == -errno.ENOMEM
        assert result.raw == bytes(64)


def test_more_descriptors_than_can_be_numbered(scan: Any) -> None:
    for count in (2**31, 2**60 + 1, 2**64 - 1):
        assert scan.vramscan_describe(None, ctypes.c_uint64(count), ctypes.c_uint64(0)) == -errno.EINVAL


def test_the_last_deadline_of_all_is_not_over() -> None:
    walked = NativeScan().files("/proc", [b"/dev/null"], None, (2**64 - 2**12) / 1e9, [b"/dev/null"])
    assert not walked.late

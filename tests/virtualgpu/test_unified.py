"""GPUs that share the machine's memory, with the answers that owners of a GB10 and a GH200 reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.virtualgpu.conftest import Hold, ask
from vram.errors import UsageError
from vram.units import GIB, KIB, MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.config import UNIFIED

pytestmark = pytest.mark.native

NOT_SUPPORTED = 3
LINES = """
def lines(name):
    text = ctypes.create_string_buffer(4096)
    n.nvmlLib.vram_virtual_file(name, text, 4096)
    pairs = (line.rsplit(":", 1) for line in text.value.decode().splitlines())
    return {key: int(value.split()[0]) for key, value in pairs}
"""
FREE = """
driver = ctypes.CDLL("libcuda.so.1")
context, free, total, integrated = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_int()
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert driver.cuDeviceGetAttribute(ctypes.byref(integrated), 18, 0) == 0
"""


@pytest.fixture
def unified(native_libraries: Path) -> Iterator[VirtualGpu]:
    with VirtualGpu.create(unified=True) as gpu:
        yield gpu


@pytest.fixture
def grace(native_libraries: Path) -> Iterator[VirtualGpu]:
    """A GPU whose memory is node 1, on which others have 3 GiB and cached files 20."""
    others = {"cpu_bytes": 3 * GIB, "cache_bytes": 20 * GIB}
    with VirtualGpu.create(memory_bytes=96 * GIB, numa_node=1, **others) as gpu:
        yield gpu


def test_totals_are_refused_and_processes_are_listed(unified: VirtualGpu, hold: Hold) -> None:
    holder = hold(unified, 4 * GIB)
    refused = "[code(n.nvmlDeviceGetMemoryInfo, handle(0), v) for v in (None, n.nvmlMemory_v2)]"
    assert ask(unified, refused) == [NOT_SUPPORTED, NOT_SUPPORTED]
    assert ask(unified, "code(n.nvmlDeviceGetBAR1MemoryInfo, handle(0))") == NOT_SUPPORTED
    assert ask(unified, "code(n.nvmlDeviceGetNumaNodeId, handle(0))") == NOT_SUPPORTED
    assert ask(unified, "n.nvmlDeviceGetAddressingMode(handle(0))") == 2
    assert ask(unified, "processes()") == [[holder.pid, 4 * GIB + 518 * MIB]]


def test_the_kernels_figures_have_what_the_gpu_uses(unified: VirtualGpu, hold: Hold) -> None:
    before = ask(unified, "lines(b'meminfo')", LINES)
    assert before["MemTotal"] * KIB == UNIFIED["total_bytes"]
    assert before["MemAvailable"] * KIB == int(UNIFIED["total_bytes"]) - int(UNIFIED["cpu_bytes"])
    assert before["MemAvailable"] - before["MemFree"] == before["Cached"]
    hold(unified, 4 * GIB)
    taken = before["MemAvailable"] - ask(unified, "lines(b'meminfo')", LINES)["MemAvailable"]
    assert 4 * GIB < taken * KIB < 5 * GIB


def test_cuda_calls_cached_files_not_free_and_an_allocation_gets_their_room(unified: VirtualGpu) -> None:
    unified.set(cpu_bytes=100 * GIB, cache_bytes=15 * GIB)
    alloc = "driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(free.value + (8 << 30)))"
    free, total, integrated, allocated = ask(
        unified, f"[free.value, total.value, integrated.value, {alloc}]", FREE
    )
    assert total == UNIFIED["total_bytes"]
    assert 6 * GIB < free < 7 * GIB
    assert (integrated, allocated) == (1, 0)


def test_a_gpu_on_a_node_gives_totals_with_the_kernels_pages_in_them(grace: VirtualGpu, hold: Hold) -> None:
    hold(grace, 4 * GIB)
    total, _, free, used = ask(grace, "memory()")["v2"]
    assert total == 96 * GIB
    assert 27 * GIB < used < 28 * GIB
    assert free < 69 * GIB
    assert ask(grace, "n.nvmlDeviceGetNumaNodeId(handle(0))") == 1
    node = ask(grace, "lines(b'node1/meminfo')", LINES)
    assert node["Node 1 MemTotal"] * KIB == total
    assert (node["Node 1 FilePages"], node["Node 1 AnonPages"]) == (20 * GIB // KIB, 3 * GIB // KIB)
    assert ask(grace, "lines(b'node2/meminfo')", LINES) == ask(grace, "lines(b'meminfo')", LINES) == {}


def test_an_ordinary_gpu_has_none_of_this(virtual_gpu: VirtualGpu) -> None:
    assert ask(virtual_gpu, "lines(b'meminfo')", LINES) == {}
    assert ask(virtual_gpu, "n.nvmlDeviceGetAddressingMode(handle(0))") == 0


@pytest.mark.parametrize(
    ("gpus", "settings"),
    [(2, {}), (1, {"memory_bytes": 4 * GIB})],
    ids=["two on one memory", "less memory than others use"],
)
def test_a_machine_that_cannot_be_is_refused(gpus: int, settings: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        VirtualGpu.create(gpus, unified=True, **settings)

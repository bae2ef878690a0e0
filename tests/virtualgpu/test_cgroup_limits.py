"""Limits by control group, with the structures of nvidia-ml-py 13.615 and as NVIDIA's pages describe them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs
from tests.virtualgpu.conftest import Hold, ask
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

pytestmark = [pytest.mark.native, needs("root")]

SETUP = """
import os
root = os.environ["VRAM_VIRTUAL_GPU"] + "/cgroup"
NO_LIMIT = n.NVML_DEVICE_MEMORY_LIMIT_MAX
def put(path, hard, soft=0):
    asked = n.c_nvmlSetMemoryLimits_v1_t(nameSpace=(root + path).encode(), softLimit=soft, hardLimit=hard)
    return code(n.nvmlDeviceSetMemoryLimits_v1, handle(0), asked)
def got(path):
    asked = n.c_nvmlGetMemoryLimits_v1_t(nameSpace=(root + path).encode())
    failed = code(n.nvmlDeviceGetMemoryLimits_v1, handle(0), asked)
    return failed or [asked.softLimit, asked.hardLimit, asked.currentUsed]
"""


@pytest.fixture
def gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    with VirtualGpu.create(driver_version="615.71.09") as gpu:
        gpu.add_cgroup("/a.slice/b.scope")
        gpu.add_cgroup("/a.slice/plain", limited=False)
        yield gpu


def test_a_limit_is_set_read_and_removed(gpu: VirtualGpu) -> None:
    assert ask(gpu, "[put('/a.slice/b.scope', 20 << 30, 4 << 30), got('/a.slice/b.scope')]", SETUP) == [
        0,
        [4 * GIB, 20 * GIB, 0],
    ]
    text = (gpu.folder / "cgroup/a.slice/b.scope/dmem.max").read_text()
    assert text == f"nvidia/00000000:01:00.0/vidmem {20 * GIB}\n"
    assert ask(gpu, "[put('/a.slice/b.scope', NO_LIMIT), got('/a.slice/b.scope')]", SETUP)[1][:2] == [
        0,
        2**64 - 1,
    ]


def test_a_group_without_the_controller_reads_the_one_above_and_sets_nothing(gpu: VirtualGpu) -> None:
    """As documented: setting answers "not found", reading inherits."""
    asked = "[put('/a.slice', 8 << 30), got('/a.slice/plain'), put('/a.slice/plain', 1 << 30), got('/c')]"
    assert ask(gpu, asked, SETUP) == [0, [0, 8 * GIB, 0], 6, 6]


def test_inside_a_limit_the_totals_of_version_2_and_of_cuda_are_the_limit(
    gpu: VirtualGpu, hold: Hold
) -> None:
    ask(gpu, "put('/a.slice/b.scope', 20 << 30)", SETUP)
    hold(gpu, 4 * GIB)  # of another group
    inside = "os.environ['VRAM_VIRTUAL_CGROUP'] = '/a.slice/b.scope'"
    found = ask(gpu, "[memory()['v1'][0], memory()['v2']]", "import os", inside)
    assert found[0] == 143771 * MIB
    assert found[1] == [20 * GIB, 0, 20 * GIB, 0]
    alloc = "driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(21 << 30))"
    setup = (
        "import os",
        inside,
        'driver = ctypes.CDLL("libcuda.so.1"); context = ctypes.c_void_p(); driver.cuInit(0)',
        "driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); driver.cuCtxSetCurrent(context)",
        "free, total = ctypes.c_size_t(), ctypes.c_size_t()",
        "driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))",
    )
    free, total, failed = ask(gpu, f"[free.value, total.value, {alloc}]", *setup)
    assert total == 20 * GIB
    assert 19 * GIB < free < 20 * GIB
    assert failed == 2


def test_a_parents_limit_holds_and_is_not_the_total(gpu: VirtualGpu) -> None:
    """The leaf has a limit of its own, "max", so it reports the whole GPU: NVIDIA warns of that."""
    ask(gpu, "put('/a.slice', 2 << 30)", SETUP)
    inside = "os.environ['VRAM_VIRTUAL_CGROUP'] = '/a.slice/b.scope'"
    assert ask(gpu, "memory()['v2'][0]", "import os", inside) == 143771 * MIB
    setup = (
        "import os",
        inside,
        'driver = ctypes.CDLL("libcuda.so.1"); context = ctypes.c_void_p(); driver.cuInit(0)',
        "driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0); driver.cuCtxSetCurrent(context)",
    )
    alloc = "driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t({} << 30))"
    assert ask(gpu, f"[{alloc.format(3)}, {alloc.format(1)}]", *setup) == [2, 0]


def test_older_drivers_do_not_have_the_calls(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.add_cgroup("/a.slice")
    assert ask(virtual_gpu, "[put('/a.slice', 1 << 30), got('/a.slice')]", SETUP) == [13, 13]

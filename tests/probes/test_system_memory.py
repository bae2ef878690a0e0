"""The machine's memory as the kernel counts it, beside the driver's lists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.probes.conftest import facts, said, take
from vram.host.local.system_memory import node_memory, node_use, system_memory
from vram.model.gpu import ChargeFacts, GpuFacts, MemoryFacts
from vram.units import GIB, KIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.config import UNIFIED
from vram.virtualgpu.demos import DemoProgram

NODE = """Node 1 MemTotal:       100 kB
Node 1 MemFree:        40 kB
Node 1 FilePages:      30 kB
Node 1 AnonPages:      10 kB
Node 1 Shmem:          5 kB
Node 1 Slab:           7 kB
Node 1 HugePages_Total:    0
"""


def test_this_machine() -> None:
    """Compared with the file itself, read a moment later."""
    found = system_memory()
    assert found is not None
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    assert found["total"] == int(lines["MemTotal"].split()[0]) * KIB
    assert found["free"] + found["used"] == found["total"]
    assert abs(found["free"] - int(lines["MemAvailable"].split()[0]) * KIB) < found["total"] // 2
    assert 0 < found["system"]["programs"] < found["total"]
    assert found["system"]["node"] is None


def test_a_kernel_that_does_not_say_what_is_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 40 kB\n")
    assert system_memory(str(tmp_path)) is None
    assert system_memory(str(tmp_path / "nowhere")) is None


@pytest.mark.parametrize("processors", ["", "0-71"], ids=["of a GPU", "of processors"])
def test_a_node_is_a_gpus_own_where_it_has_no_processors(tmp_path: Path, processors: str) -> None:
    folder = tmp_path / "devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "meminfo").write_text(NODE)
    (folder / "cpulist").write_text(f"{processors}\n")
    use = {"node": 1, "programs": 15 * KIB, "files": 25 * KIB, "kernel": 7 * KIB}
    assert node_use(1, str(tmp_path)) == (None if processors else use)
    found = node_memory(1, str(tmp_path))
    assert (found is None) == bool(processors)
    if found:
        assert (found["total"], found["free"], found["used"]) == (100 * KIB, 65 * KIB, 35 * KIB)


def test_a_gpu_that_refuses_totals_is_counted_by_the_kernel(native_libraries: Path) -> None:
    with VirtualGpu.create(unified=True) as gpu, DemoProgram(gpu, "forks.orphan") as demo:
        demo.kill("parent")
        survey = take(gpu)
        ((_, memory),) = facts(survey, MemoryFacts)
        assert (memory.counted_by, memory.total, memory.reserved) == ("kernel", UNIFIED["total_bytes"], None)
        assert memory.system is not None
        assert (memory.system.node, memory.system.programs) == (None, UNIFIED["cpu_bytes"])
        assert memory.used - int(UNIFIED["cpu_bytes"]) > demo.nbytes
        assert memory.moved_bytes == 0
        ((charge, _),) = facts(survey, ChargeFacts)
        assert charge.process.pid == demo.pids["parent"]
        ((_, found),) = facts(survey, GpuFacts)
        assert (found.numa_node, found.addressing, found.bar1_total) == (None, "ats", None)
        assert {each.status for each in said(survey, "nvml.memory", gpu=0)} == {"ok"}


def test_a_gpu_on_a_node_says_what_the_kernel_has_there(native_libraries: Path) -> None:
    with VirtualGpu.create(numa_node=3, cpu_bytes=GIB, cache_bytes=2 * GIB) as gpu:
        ((_, memory),) = facts(take(gpu), MemoryFacts)
        assert memory.counted_by == "driver"
        assert memory.system is not None
        assert (memory.system.node, memory.system.nbytes, memory.used) == (3, 3 * GIB, 3 * GIB)


def test_a_card_with_a_bus_that_refuses_totals_is_not_taken_for_one(virtual_gpu: VirtualGpu) -> None:
    """It has a BAR1 window, so it has memory of its own: this machine's is not counted in its name."""
    virtual_gpu.fail("nvmlDeviceGetMemoryInfo*", error="NOT_SUPPORTED")
    survey = take(virtual_gpu)
    assert facts(survey, MemoryFacts) == []
    assert [each.code for each in said(survey, "nvml.memory", gpu=0)] == ["nvml-3"]


def test_a_library_that_breaks_is_not_taken_for_one(native_libraries: Path) -> None:
    with VirtualGpu.create(unified=True) as gpu:
        gpu.fail("nvmlDeviceGetMemoryInfo*", error="UNKNOWN")
        survey = take(gpu)
        assert facts(survey, MemoryFacts) == []
        assert [each.status for each in said(survey, "nvml.memory", gpu=0)] == ["failed"]

"""Programs that people use, unmodified, on the virtual GPU."""

from __future__ import annotations

import json
import sys

from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.virtualgpu.conftest import Hold
from vram.units import GIB, MIB
from vram.virtualgpu import VirtualGpu

CONTEXT_MIB, OVERHEAD_BYTES = 518, 8 * MIB + 832 * 1024


@needs("gpustat")
def test_gpustat_shows_the_right_memory_and_processes(two_virtual_gpus: VirtualGpu, hold: Hold) -> None:
    holder = hold(two_virtual_gpus, 4 * GIB, 1)
    argv = [sys.executable, "-m", "gpustat", "--json"]
    done = two_virtual_gpus.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    idle, busy = json.loads(done.stdout)["gpus"]
    assert [idle["name"], idle["memory.used"], idle["processes"]] == ["NVIDIA H200 (virtual)", 3, []]
    assert busy["memory.total"] == 143771
    assert busy["memory.used"] == (CONTEXT_MIB * MIB + OVERHEAD_BYTES + 4 * GIB) // MIB
    (process,) = busy["processes"]
    assert (process["pid"], process["gpu_memory_usage"]) == (holder.pid, CONTEXT_MIB + 4096)


@needs("nvitop")
def test_nvitop_shows_the_right_memory_and_processes(virtual_gpu: VirtualGpu, hold: Hold) -> None:
    holder = hold(virtual_gpu, 4 * GIB)
    argv = [sys.executable, "-m", "nvitop", "-1"]
    done = virtual_gpu.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert "H200 (virtual)" in done.stdout
    assert "140.4GiB" in done.stdout
    row = next(line for line in done.stdout.splitlines() if f" {holder.pid} " in line)
    assert "4614MiB" in row

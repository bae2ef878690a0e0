"""What somebody writes who wants a GPU's memory as JSON: NVML through its Python binding, and no more.

It reads what `vram why` reads: the driver's figures and lists, who the listed processes are, and which
processes have a GPU's files open. It balances nothing and judges nothing.
"""

from __future__ import annotations

import json
import os

import pynvml as nvml


def gpu(index: int) -> dict[str, object]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    listed = {
        name: [(each.pid, each.usedGpuMemory) for each in read(handle)]
        for name, read in {
            "compute": nvml.nvmlDeviceGetComputeRunningProcesses,
            "graphics": nvml.nvmlDeviceGetGraphicsRunningProcesses,
            "mps": nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        }.items()
    }
    return {
        "index": index,
        "name": nvml.nvmlDeviceGetName(handle),
        "uuid": nvml.nvmlDeviceGetUUID(handle),
        "minor": nvml.nvmlDeviceGetMinorNumber(handle),
        "bus_id": nvml.nvmlDeviceGetPciInfo(handle).busId,
        "memory": [memory.total, memory.free, memory.used, memory.reserved],
        "bar1": [bar1.bar1Total, bar1.bar1Used],
        "utilization": rates.gpu,
        "processes": listed,
        "holders": {pid: process(pid) for pids in listed.values() for pid, _ in pids},
    }


def process(pid: int) -> dict[str, object]:
    facts: dict[str, object] = {}
    for name in ("cmdline", "stat", "status", "cgroup"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                facts[name] = file.read().decode(errors="replace")
        except OSError:
            facts[name] = None
    return facts


def with_device_files() -> dict[str, list[str]]:
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            opened = [os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if files := [path for path in opened if path.startswith(("/dev/nvidia", "/dev/dri", "/dev/kfd"))]:
            found[pid] = files
    return found


nvml.nvmlInit()
report = {
    "driver": nvml.nvmlSystemGetDriverVersion(),
    "cuda": nvml.nvmlSystemGetCudaDriverVersion(),
    "open": with_device_files(),
    "gpus": [gpu(index) for index in range(nvml.nvmlDeviceGetCount())],
}
print(json.dumps(report, indent=2))

"""Answers questions about the first GPU with nvidia-ml-py: one JSON line in, one out.

A process of its own, so that whoever asks needs no driver library and can choose which
one the observer loads.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pynvml

LISTS = ("Compute", "Graphics", "MPSCompute")


def text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def gpu(handle: Any) -> dict[str, Any]:
    return {
        "name": text(pynvml.nvmlDeviceGetName(handle)),
        "uuid": text(pynvml.nvmlDeviceGetUUID(handle)),
        "driver": text(pynvml.nvmlSystemGetDriverVersion()),
        "nvml": text(pynvml.nvmlSystemGetNVMLVersion()),
        "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
        "count": pynvml.nvmlDeviceGetCount(),
    }


def processes(handle: Any) -> dict[str, dict[int, int | None]]:
    lists = {}
    for name in LISTS:
        try:
            running = getattr(pynvml, f"nvmlDeviceGet{name}RunningProcesses_v3")(handle)
        except pynvml.NVMLError_NotSupported:
            continue
        lists[name.lower()] = {process.pid: process.usedGpuMemory for process in running}
    return lists


def memory(handle: Any) -> dict[str, Any]:
    """Read memory twice around the process lists, so that a moving figure can be seen."""
    first = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    lists = processes(handle)
    one = pynvml.nvmlDeviceGetMemoryInfo(handle)
    two = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {
        "total": two.total,
        "free": two.free,
        "used": two.used,
        "reserved": two.reserved,
        "v1_total": one.total,
        "v1_used": one.used,
        "v1_free": one.free,
        "moved": two.used - first.used,
        "lists": lists,
    }


def bar1(handle: Any) -> dict[str, int]:
    info = pynvml.nvmlDeviceGetBAR1MemoryInfo(handle)
    return {"total": info.bar1Total, "used": info.bar1Used, "free": info.bar1Free}


SUPPORT: dict[str, Callable[[Any], Any]] = {
    "accounting mode": pynvml.nvmlDeviceGetAccountingMode,
    "retired pages (double bit)": lambda handle: list(pynvml.nvmlDeviceGetRetiredPages(handle, 1)),
    "retired pages pending": pynvml.nvmlDeviceGetRetiredPagesPendingStatus,
    "remapped rows": pynvml.nvmlDeviceGetRemappedRows,
    "GSP firmware mode": pynvml.nvmlDeviceGetGspFirmwareMode,
    "persistence mode": pynvml.nvmlDeviceGetPersistenceMode,
    "compute mode": pynvml.nvmlDeviceGetComputeMode,
    "ECC mode": pynvml.nvmlDeviceGetEccMode,
    "ECC uncorrected (volatile)": lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
    "MIG mode": pynvml.nvmlDeviceGetMigMode,
    "utilization": lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory,
    "process utilization": lambda handle: len(pynvml.nvmlDeviceGetProcessUtilization(handle, 0)),
    "minor number": pynvml.nvmlDeviceGetMinorNumber,
    "PCI bus id": lambda handle: text(pynvml.nvmlDeviceGetPciInfo(handle).busId),
    "brand": pynvml.nvmlDeviceGetBrand,
    "architecture": pynvml.nvmlDeviceGetArchitecture,
    "temperature": lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
    "power usage": pynvml.nvmlDeviceGetPowerUsage,
    "enforced power limit": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "fan speed": pynvml.nvmlDeviceGetFanSpeed,
    "display mode": pynvml.nvmlDeviceGetDisplayMode,
    "graphics clock": lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 0),
    "performance state": pynvml.nvmlDeviceGetPerformanceState,
}


def support(handle: Any) -> dict[str, Any]:
    """Which calls answer, and what they say where they do not."""
    answers = {}
    for name, ask in SUPPORT.items():
        try:
            answers[name] = ask(handle)
        except pynvml.NVMLError as error:
            answers[name] = f"{type(error).__name__}"
        except Exception as error:
            answers[name] = f"{type(error).__name__}: {error}"
    return answers


QUESTIONS: dict[str, Callable[[Any], Any]] = {"gpu": gpu, "memory": memory, "bar1": bar1, "support": support}


def main() -> None:
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for line in sys.stdin:
        try:
            answer = {"answer": QUESTIONS[line.strip()](handle)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()

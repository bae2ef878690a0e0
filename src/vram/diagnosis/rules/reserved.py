"""VR401 Reserved memory: the driver's own part, which some tools count as used.

What it detects
---------------
The driver reserves part of the GPU's memory for itself, and the older version of NVML's memory
call counts that part as used. Tools that still use it show hundreds of MiB on an empty GPU.

Why it happens
--------------
Firmware, page tables, error correction and the driver itself need memory. Version 1 of the
memory call has no field for it and adds it to used; version 2 reports it separately.

How to confirm
--------------
nvidia-smi shows both figures:

    nvidia-smi --query-gpu=memory.used,memory.reserved,memory.total --format=csv

Remedies and their risk
-----------------------
- Nothing has to be done: no program can use that memory, and none leaks it.
- When you compare figures, take them from the same tool, or from version 2 of the call.

Source
------
Measured on an H200, driver 580.159, nothing running: version 1 says 615.1 MiB used; version 2
says 615.1 reserved and 0.0 used.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.model.finding import Finding
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import size

CODE = "VR401"


def judge(ledger: Ledger) -> Iterator[Finding]:
    gpus = [gpu for gpu in ledger.gpus if _reserved(gpu) > 0 and _counted_as_used(gpu)]
    if gpus:
        yield _finding(gpus)


def _reserved(gpu: GpuLedger) -> int:
    return known_bytes(gpu.of_kind("reserved"))


def _counted_as_used(gpu: GpuLedger) -> bool:
    memory = gpu.memory
    return memory is not None and memory.v1_used is not None and memory.v1_used > memory.used


def _finding(gpus: list[GpuLedger]) -> Finding:
    nbytes = sum(map(_reserved, gpus))
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} reserved by the driver; some tools count it as used",
        nbytes=nbytes,
        cause=(
            f"The driver reserves {size(nbytes)} for itself. Tools that use the older memory call count it"
            " as used; no process holds it and none can allocate it."
        ),
        gpus=tuple(gpu.index for gpu in gpus),
        evidence=words.evidence(_told(gpu) for gpu in gpus),
        severity="info",
    )


def _told(gpu: GpuLedger) -> str:
    used, old = (gpu.memory.used, gpu.memory.v1_used or 0) if gpu.memory else (0, 0)
    return f"GPU {gpu.index}: version 1 of the memory call says {size(old)} used, version 2 {size(used)}"

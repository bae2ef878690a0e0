"""VR409 Cached files count as used by CUDA: the GPU's memory is the system's.

What it detects
---------------
A GPU without memory of its own (GB10, Jetson), where cached files take a tenth of the system's
memory or more.

Why it happens
--------------
The kernel keeps files that were read, a model's weights for example, in memory that nobody else
needs. It releases them as soon as somebody does, so what vram calls free includes them. CUDA's own
figure (cudaMemGetInfo) does not: a program that asks it first, as servers do when they start, may
refuse to run although there is room.

How to confirm
--------------
The difference of these two is what CUDA does not count:

    grep -E 'MemAvailable|MemFree' /proc/meminfo

Remedies and their risk
-----------------------
- Nothing, if programs start: an allocation gets the room.
- `sync; echo 3 | sudo tee /proc/sys/vm/drop_caches` releases them at once. What is needed again is
  read from the disk again.

Source
------
Reported for the GB10 in jundot/omlx#3526 and vllm-project/vllm#35313; NVIDIA's guides for the DGX
Spark advise the command. Not measured by vram.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import size

CODE = "VR409"

_PART = 10  # of the total: less makes no program refuse


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        use = gpu.memory.system if gpu.memory is not None else None
        if use is not None and not gpu.has_own_memory and use.files * _PART >= (gpu.total_bytes or 0) > 0:
            yield _finding(gpu, min(use.files, known_bytes(gpu.accounted)))


def _finding(gpu: GpuLedger, nbytes: int) -> Finding:
    text = "If a program finds too little free, release cached files; they are read from the disk again."
    command = "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} of cached files: CUDA counts them as used on GPU {gpu.index}",
        nbytes=nbytes,
        cause=(
            f"GPU {gpu.index} uses the system's memory, of which cached files take {size(nbytes)}. They give"
            " way to an allocation, but a program that asks CUDA what is free is not told so."
        ),
        gpus=(gpu.index,),
        remedies=(Remedy(step="free", target="host", text=text, command=command),),
        severity="info",
    )

"""VR406 MIG memory unassigned: part of the GPU belongs to no instance.

What it detects
---------------
The GPU is divided by MIG, and more than the usual remainder of its memory belongs to no instance;
or MIG is on and no instance exists, so that no program can use the GPU.

Why it happens
--------------
Under MIG a program runs inside an instance and can use only that instance's memory. Memory that
belongs to no instance cannot be allocated by anybody, although the GPU's own figures call it free.
Profiles come in eighths of the memory and sevenths of the compute, so a small remainder is normal.

How to confirm
--------------
List the instances, and the profiles that still fit:

    nvidia-smi mig -lgi
    nvidia-smi mig -lgip

Remedies and their risk
-----------------------
- Create another instance in the remaining memory. No risk to running programs.
- If the compute slices are used up, larger profiles would use the memory; that means destroying
  instances, and with them everything that runs there.
- Turn MIG off if it is not needed. Everything on the GPU has to end first.

Source
------
Described in NVIDIA's guide to Multi-Instance GPU; not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import counted, size

CODE = "VR406"

# Seven instances of one slice leave an eighth: that is how the hardware divides.
_USUAL_SIXTEENTHS = 3


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        nbytes = known_bytes(gpu.of_kind("unassigned"))
        if gpu.total_bytes and nbytes * 16 >= gpu.total_bytes * _USUAL_SIXTEENTHS:
            yield _finding(gpu, nbytes)


def _finding(gpu: GpuLedger, nbytes: int) -> Finding:
    target = f"gpu {gpu.index}"
    made = (
        f"The rest belongs to {counted(len(gpu.instances), 'instance')}"
        if gpu.instances
        else "No instance exists, so no program can use this GPU"
    )
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu.index} belongs to no MIG instance",
        nbytes=nbytes,
        cause=f"MIG is on, and {size(nbytes)} belongs to no instance: no program can allocate it. {made}.",
        gpus=(gpu.index,),
        evidence=words.evidence(line for entry in gpu.of_kind("unassigned") for line in entry.evidence),
        remedies=(
            Remedy(
                step="look",
                target=target,
                text="List the profiles, and how many instances of each still fit.",
                command=f"nvidia-smi mig -lgip -i {gpu.index}",
            ),
            Remedy(step="ask", target=target, text="Ask the administrator to create another instance."),
        ),
        severity="info" if gpu.instances else "warning",
    )

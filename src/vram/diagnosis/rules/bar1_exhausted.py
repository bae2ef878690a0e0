"""VR402 BAR1 exhausted: the window to the GPU's memory is full, not the memory.

What it detects
---------------
At least 90 % of the BAR1 window is in use while at least a tenth of the GPU's memory is free.

Why it happens
--------------
BAR1 is the address window through which the CPU and other devices access GPU memory. Peer-to-peer
transfers, RDMA and mapped memory use space in it. On many GPUs it is far smaller than the memory,
so allocations that need a mapping fail with "out of memory" while plenty is free.

How to confirm
--------------
Compare both:

    nvidia-smi -q -d MEMORY

Remedies and their risk
-----------------------
- Close unused peer-to-peer and RDMA registrations in the programs that hold them. No risk.
- Kill programs that no longer need them. Their unsaved work is lost.
- Enable "Resizable BAR" or "Above 4G decoding" in the machine's firmware: needs a restart.

Source
------
Reported in open-gpu-kernel-modules #1134 and #1187; not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.model.finding import Finding, Remedy
from vram.model.gpu import GpuFacts
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import size

CODE = "VR402"

_FULL_PERCENT = 90
_FREE_PERCENT = 10


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        free = known_bytes(gpu.of_kind("free"))
        roomy = gpu.total_bytes is not None and free * 100 >= gpu.total_bytes * _FREE_PERCENT
        if free > 0 and roomy and gpu.facts is not None and _is_full(gpu.facts):
            yield _finding(gpu, gpu.facts, free)


def _is_full(facts: GpuFacts) -> bool:
    used, total = facts.bar1_used, facts.bar1_total
    return used is not None and total is not None and total > 0 and used * 100 >= total * _FULL_PERCENT


def _finding(gpu: GpuLedger, facts: GpuFacts, free: int) -> Finding:
    window = f"{size(facts.bar1_used or 0)} of {size(facts.bar1_total or 0)}"
    return Finding(
        code=CODE,
        title=f"The BAR1 window of GPU {gpu.index} is full: {window}",
        # BAR1 is address space: none of these bytes is the GPU's memory.
        nbytes=None,
        cause=(
            f"The CPU and other devices access this GPU's memory through BAR1, and {window} of it is in use."
            f' Mappings fail with "out of memory" although {size(free)} is free.'
        ),
        gpus=(gpu.index,),
        evidence=words.evidence((f"the driver reports BAR1 used: {window}",)),
        remedies=_remedies(gpu),
    )


def _remedies(gpu: GpuLedger) -> tuple[Remedy, ...]:
    target = f"gpu {gpu.index}"
    release = "Close unused peer-to-peer and RDMA registrations in the programs on this GPU."
    firmware = "Enable Resizable BAR (or Above 4G decoding) in the machine's firmware; this needs a restart."
    return (
        Remedy(
            step="look", target=target, text="Check who uses the GPU.", command=f"vram who --gpu {gpu.index}"
        ),
        Remedy(step="change", target="program", text=release),
        Remedy(step="service", target="host", text=firmware, harm="affects-others"),
    )

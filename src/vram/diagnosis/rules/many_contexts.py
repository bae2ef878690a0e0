"""VR205 Many contexts: small processes pay for a context each and hold little else.

What it detects
---------------
Three or more processes on one GPU hold no more than about a bare context each: between 100 and
640 MiB.

Why it happens
--------------
Every process that uses CUDA gets a context of its own: code, stacks and work areas that cost
hundreds of MiB before the first allocation. Web workers, test runners, notebooks and data loaders
that each touch the GPU multiply it. Importing a framework does not cost it; the first CUDA call
does, an innocent one like asking for the device's properties included.

How to confirm
--------------
The processes hold about the same, near the size of a context:

    vram who
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv

Remedies and their risk
-----------------------
- Let workers that need no GPU not see one: start them with CUDA_VISIBLE_DEVICES= (empty).
- Let one process own the GPU and serve the others, or share one context by threads.
- MPS lets processes share one server's resources: a change of how the machine is run.
- Load code lazily (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2): contexts get smaller.
- End those that are idle: their unsaved work is lost.

Source
------
Measured on an H200, driver 580.159: a bare context is charged with 518.0 MiB and uses 526.8; the
first PyTorch 2.11 tensor makes it 612.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather, is_bare
from vram.ledger.processes import in_use
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.units import size

CODE = "VR205"

_MANY = 3


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        if gpu.driver != "nvidia":  # what a context costs elsewhere was never measured
            continue
        small = [held for held in gather((gpu,), in_use) if is_bare(held.nbytes)]
        if len(small) >= _MANY:
            yield _finding(gpu, small)


def _finding(gpu: GpuLedger, small: list[HeldMemory]) -> Finding:
    nbytes = sum(held.nbytes for held in small)
    holders = [held.holder for held in small if held.holder is not None]
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} spent on the contexts of {len(small)} small processes",
        nbytes=nbytes,
        cause=(
            f"{len(small)} processes on GPU {gpu.index} hold no more than about a bare context each,"
            f" {size(nbytes)} together: they pay for being there."
        ),
        gpus=(gpu.index,),
        pids=tuple(holder.pid for holder in holders),
        evidence=words.evidence(
            f"pid {held.holder.pid} holds {size(held.nbytes)}" for held in small if held.holder
        ),
        remedies=_ways_out(gpu, holders),
        severity="warning",
    )


def _ways_out(gpu: GpuLedger, holders: list[Holder]) -> tuple[Remedy, ...]:
    hide = "Start workers that need no GPU without one: CUDA_VISIBLE_DEVICES= (empty) in their environment."
    share = "Let one process own the GPU and serve the others."
    return (
        *remedies.look(holders, "See which of them still work, and who started them."),
        Remedy(step="change", target="program", text=hide),
        Remedy(step="change", target=f"gpu {gpu.index}", text=share),
    )

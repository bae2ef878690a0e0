"""VR205 Many contexts: several small processes each hold a context and little else.

What it detects
---------------
Three or more processes on one GPU hold no more than about a bare context each: between 100 and
640 MiB. Ranks of one job whose memory is on other GPUs are another finding (VR210), and so are jobs
whose launcher is dead (VR208): those are ended, and not parked.

Why it happens
--------------
Every process that uses CUDA gets its own context: code, stacks and work areas that cost hundreds
of MiB before the first allocation. Web workers, test runners, notebooks and data loaders that each
touch the GPU multiply that. Importing a framework costs nothing; the first CUDA call creates the
context, even a harmless one like reading the device's properties.

How to confirm
--------------
The processes hold about the same, near the size of a context:

    vram who
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv

Remedies and their risk
-----------------------
- Hide the GPU from workers that do not need it: start them with CUDA_VISIBLE_DEVICES= (empty).
- Let one process own the GPU and serve the others, or use threads, which share one context.
- MPS lets processes share one server's resources; that changes how the machine is run.
- Load code lazily (CUDA_MODULE_LOADING=LAZY, the default since CUDA 12.2): contexts get smaller.
- `vram park PID...` moves their memory to host memory, contexts included, and pauses them until
  `vram unpark`. Not under MIG, MPS or WSL2.
- Kill those that are idle: their unsaved work is lost.

Source
------
Measured on an H200, driver 580.159: a bare context is charged with 518.0 MiB and uses 526.8; the
first PyTorch 2.11 tensor makes it 612.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies
from vram.diagnosis.held import find_stray_contexts, finding_about, is_bare
from vram.ledger.holds import find_holds, on_gpu
from vram.ledger.jobs import find_held_jobs
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import GpuLedger, Holder, Ledger
from vram.model.observation import HostFacts
from vram.units import size

CODE = "VR205"

_MANY = 3


def judge(ledger: Ledger) -> Iterator[Finding]:
    small: dict[int, list[Hold]] = {}
    stray = {(each.at, hold.key) for each in find_stray_contexts(ledger) for hold in each.holds}
    orphans = {hold.key for each in find_held_jobs(ledger) if each.is_orphan for hold in each.holds}
    for hold in find_holds(ledger):
        for at in {part.at for part in hold.parts} if hold.what == "process" else ():
            here = on_gpu(hold, at)
            if is_bare(here.nbytes) and (at, hold.key) not in stray and hold.key not in orphans:
                small.setdefault(at, []).append(here)
    for at, gpu in enumerate(ledger.gpus):
        found = sorted(small.get(at, ()), key=lambda hold: -hold.known_bytes)
        # What a context costs on others was never measured.
        if len(found) >= _MANY and gpu.driver == "nvidia":
            yield _finding(ledger.host, gpu, found)


def _finding(host: HostFacts, gpu: GpuLedger, small: list[Hold]) -> Finding:
    nbytes = sum(hold.known_bytes for hold in small)
    holders = [hold.holders[0] for hold in small]
    return finding_about(
        *small,
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu.index} used by the contexts of {len(small)} small processes",
        cause=(
            f"{len(small)} processes on GPU {gpu.index} each hold little more than a CUDA context,"
            f" {size(nbytes)} together."
        ),
        pids=[holder.pid for holder in holders],
        evidence=(f"pid {hold.holders[0].pid} holds {size(hold.known_bytes)}" for hold in small),
        remedies=_remedies(host, gpu, small, holders),
        severity="warning",
    )


def _remedies(
    host: HostFacts, gpu: GpuLedger, small: list[Hold], holders: list[Holder]
) -> tuple[Remedy, ...]:
    hide = "Start workers that need no GPU with CUDA_VISIBLE_DEVICES= (empty) in their environment."
    share = "Let one process own the GPU and serve the others."
    # Not under MIG, and not where it would free nothing.
    parks = gpu.has_own_memory and all(entry.gpu_instance is None for hold in small for entry in hold.entries)
    return (
        *remedies.look(holders, "Check which of them still work, and who started them."),
        Remedy(step="change", target="program", text=hide),
        Remedy(step="change", target=f"gpu {gpu.index}", text=share),
        *(
            remedies.park_together(host, holders, certain=all(hold.certain for hold in small))
            if parks
            else ()
        ),
    )

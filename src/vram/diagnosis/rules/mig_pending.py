"""VR407 MIG is about to change: its mode will be another after the GPU's next reset.

What it detects
---------------
The MIG mode that was asked for is not the one that the GPU is in.

Why it happens
--------------
Switching MIG on or off takes a reset of the GPU on some chips, and the driver puts it off while
anything uses the GPU. Until then nothing has changed; after the next reset or reboot programs find
instances where a whole GPU was, or the other way round.

How to confirm
--------------
The driver tells both modes:

    nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv

Remedies and their risk
-----------------------
- Let everything on the GPU finish, then reset it, and the mode that is wanted takes hold.
- Take the request back with nvidia-smi -mig, if nobody meant it. No risk.

Source
------
Described in NVIDIA's documentation of NVML and of Multi-Instance GPU; not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies
from vram.model.finding import Finding, Remedy
from vram.model.gpu import GpuFacts
from vram.model.ledger import GpuLedger, Ledger

CODE = "VR407"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        facts = gpu.facts
        if facts is not None and gpu.mig is None and _differs(facts):
            yield _finding(gpu, facts)


def _differs(facts: GpuFacts) -> bool:
    return None not in (facts.mig_enabled, facts.mig_pending) and facts.mig_enabled != facts.mig_pending


def _finding(gpu: GpuLedger, facts: GpuFacts) -> Finding:
    wanted, now = ("on", "off") if facts.mig_pending else ("off", "on")
    switch = f"sudo nvidia-smi -i {gpu.index} -mig {int(bool(facts.mig_enabled))}"
    return Finding(
        code=CODE,
        title=f"MIG of GPU {gpu.index} will be {wanted} after its next reset",
        nbytes=None,
        cause=f"MIG is {now}, and was asked to be {wanted}: that takes hold when the GPU is reset.",
        gpus=(gpu.index,),
        evidence=(f"the driver says MIG mode {now} now, {wanted} pending",),
        remedies=remedies.ordered(
            (
                Remedy(
                    step="look",
                    target=f"gpu {gpu.index}",
                    text="Take it back if nobody meant it.",
                    command=switch,
                ),
                remedies.reset(gpu, f"MIG will be {wanted} after it."),
            )
        ),
        severity="warning",
    )

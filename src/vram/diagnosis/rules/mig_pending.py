"""VR407 MIG mode change pending: it takes effect at the GPU's next reset.

What it detects
---------------
The GPU's current MIG mode differs from the pending one.

Why it happens
--------------
Some GPUs need a reset to switch MIG on or off, and the driver postpones it while anything uses the
GPU. Nothing changes until then; after the next reset or reboot programs find instances instead of a
whole GPU, or the other way round.

How to confirm
--------------
The driver reports both modes:

    nvidia-smi --query-gpu=mig.mode.current,mig.mode.pending --format=csv

Remedies and their risk
-----------------------
- Let everything on the GPU finish, then reset it: the pending mode takes effect.
- If the change is not wanted, cancel it with nvidia-smi -mig. No risk.

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
        title=f"GPU {gpu.index}: MIG will be turned {wanted} at the next reset",
        nbytes=None,
        cause=f"MIG is {now}, and a switch to {wanted} is pending. It takes effect when the GPU is reset.",
        gpus=(gpu.index,),
        evidence=(f"the driver reports MIG mode: {now}; pending: {wanted}",),
        remedies=remedies.ordered(
            (
                Remedy(
                    step="look",
                    target=f"gpu {gpu.index}",
                    text="Cancel the change if it is not wanted.",
                    command=switch,
                ),
                remedies.reset(gpu, f"Reset the GPU to turn MIG {wanted}."),
            )
        ),
        severity="warning",
    )

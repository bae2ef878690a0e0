"""VR403 Row remap pending: the GPU has faulty memory that is replaced at the next reset.

What it detects
---------------
The driver reports that a row remapping or a page retirement is pending, or that one failed.

Why it happens
--------------
Memory cells fail. GPUs since Ampere replace a faulty row by a reserve one, older ones retire the
page; both happen at the next reset of the GPU. Until then the driver avoids the faulty memory, and
programs that touched it were killed with an error (Xid 63, 64, 48, 94, 95). When no reserve row is
left, remapping fails, and the GPU has to be replaced.

How to confirm
--------------
Read both counters:

    nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Let the work on this GPU finish, start nothing new on it, then reset it or restart the machine.
  A reset with work on the GPU destroys that work, and is refused while processes hold it.
- Failed remapping: take the GPU out of service and have it replaced.

Source
------
Described in NVIDIA's "GPU Memory Error Management"; not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.gpu import GpuFacts
from vram.model.ledger import GpuLedger, Ledger

CODE = "VR403"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        facts = gpu.facts
        if facts is not None and (facts.remap_failed or facts.remap_pending or facts.retired_pending):
            yield _finding(gpu, facts)


def _finding(gpu: GpuLedger, facts: GpuFacts) -> Finding:
    failed = bool(facts.remap_failed)
    waiting = "row remapping" if facts.remap_pending else "page retirement"
    return Finding(
        code=CODE,
        title=f"GPU {gpu.index}: remapping of faulty memory failed"
        if failed
        else f"GPU {gpu.index}: {waiting} pending until the next reset",
        nbytes=None,
        cause="The GPU has faulty memory and could not replace it: there may be no reserve rows left."
        if failed
        else f"The GPU has faulty memory. The {waiting} takes effect at its next reset.",
        gpus=(gpu.index,),
        evidence=words.evidence(_told(facts)),
        remedies=_remedies(gpu, failed),
        severity="problem" if failed else "warning",
    )


def _told(facts: GpuFacts) -> Iterator[str]:
    for name, told in (
        ("row remapping failed", facts.remap_failed),
        ("row remapping pending", facts.remap_pending),
        ("page retirement pending", facts.retired_pending),
    ):
        if told:
            yield f"the driver reports: {name}"
    if facts.remapped_uncorrectable:
        yield f"{facts.remapped_uncorrectable} rows were remapped after uncorrectable errors"


def _remedies(gpu: GpuLedger, failed: bool) -> tuple[Remedy, ...]:
    target = f"gpu {gpu.index}"
    look = Remedy(
        step="look",
        target=target,
        text="Read the counters before you reset anything.",
        command=f"nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT -i {gpu.index}",
    )
    if failed:
        text = "Take this GPU out of service and have it replaced."
        return (look, Remedy(step="service", target=target, text=text, harm="affects-others"))
    return (look, remedies.reset(gpu, "A reset makes the replacement take effect."))

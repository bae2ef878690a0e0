"""VR404 GPU lost: it fell off the bus, or must be reset.

What it detects
---------------
The driver reports that the GPU is lost, or that it must be reset before it can be used.

Why it happens
--------------
The link to the GPU broke (power, heat, a riser or cable, a firmware fault: Xid 79), or the driver
stopped using it after a serious error. The contents of its memory are lost, and processes on it get
errors or hang.

How to confirm
--------------
The kernel log shows when and why; lspci shows whether it is still on the bus:

    sudo dmesg --ctime | grep -iE 'xid|nvrm'
    lspci -d 10de:

Remedies and their risk
-----------------------
- Save the kernel log, and move new work to other GPUs. No risk.
- Kill every process on this GPU; they cannot continue. Their unsaved work is lost.
- Only then reset the GPU or restart the machine. Other GPUs on the same link may be reset with
  it, and everything that runs on them is lost.
- If it happens again, have power, cooling and the GPU checked.

Source
------
The two answers are NVML's "GPU is lost" and "reset required"; Xid 79 is described in NVIDIA's
list of Xid errors. Not measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger
from vram.model.observation import NVML_RESET_REQUIRED

CODE = "VR404"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        if gpu.status == "lost" or _needs_reset(gpu):
            yield _finding(gpu)


def _needs_reset(gpu: GpuLedger) -> bool:
    return gpu.status in ("lost", "failed") and gpu.code == NVML_RESET_REQUIRED


def _finding(gpu: GpuLedger) -> Finding:
    reset, target = _needs_reset(gpu), f"gpu {gpu.index}"
    drain = (
        "Move work to other GPUs and end every process on this one; then reset the GPU or restart the"
        " machine."
    )
    return Finding(
        code=CODE,
        title=f"GPU {gpu.index} {'needs a reset' if reset else 'is lost'}",
        nbytes=None,
        cause="The driver stopped using this GPU after a serious error. It must be reset."
        if reset
        else "The driver can no longer reach this GPU. The contents of its memory are lost.",
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message else ()),
        remedies=(
            remedies.kernel_log(target, (gpu.driver,)),
            Remedy(step="drain", target=target, text=drain, harm="affects-others"),
        ),
    )

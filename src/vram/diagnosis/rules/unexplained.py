"""VR106 Unexplained bytes: memory is in use, and nothing visible accounts for it.

What it detects
---------------
More memory is in use than processes, exported allocations, dma-bufs, contexts and reserved memory
add up to. Amounts below 64 MiB are not reported: drivers round, and a context costs a little more
than its process is charged.

Why it happens
--------------
The holder is not visible (another user, another PID namespace, a virtual machine, the Windows
side of WSL2), a kernel module holds the memory (display, RDMA peer memory), or the driver does
not report figures per process on this system. AMD and Intel drivers do not report their own part
(page tables, firmware, screen buffers); up to 512 MiB is assumed to be that.

How to confirm
--------------
Run vram as root; see which modules and processes have the driver open:

    sudo vram why
    lsmod | grep -E '^nvidia'
    sudo fuser -v /dev/nvidia*

Remedies and their risk
-----------------------
- Run it again with sudo, outside containers. No risk.
- Take a snapshot and attach it to a bug report: `vram snapshot -o FILE --redact`. No risk.
- Do not kill anything until the holder is known.

Source
------
Measured on an H200, driver 580.159: a context uses 526.8 MiB while its process is charged with
518.0. Under WSL2 the driver gives no figures per process (read in NVIDIA's documentation).
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies
from vram.diagnosis.held import finding_about
from vram.ledger.holds import on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger
from vram.units import MIB, counted, size

CODE = "VR106"

# Several times what a context costs beyond its charge (8.8 MiB on an H200, driver 580.159).
_SMALL = 64 * MIB


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu, holds in on_each_gpu(ledger, lambda entry: entry.kind == "unattributed"):
        nbytes = sum(hold.known_bytes for hold in holds)
        if nbytes >= _SMALL:
            yield finding_about(
                *holds,
                code=CODE,
                title=f"{size(nbytes)} of GPU {gpu.index} in use by an unknown holder",
                cause=_cause(ledger, gpu, size(nbytes)),
                remedies=_remedies(ledger, gpu),
                severity="warning",
            )


def _cause(ledger: Ledger, gpu: GpuLedger, nbytes: str) -> str:
    if gpu.windows is not None and gpu.windows.read:
        return (
            f"{nbytes} is in use, but no Windows process counts it. The display, Windows itself and"
            " memory that is being freed are not counted per process."
        )
    if ledger.host.wsl:
        return (
            f"{nbytes} is in use, and under WSL2 the driver does not report by whom. It may be Windows"
            " programs or other distributions."
        )
    if gpu.status in ("failed", "timeout", "denied"):
        return (
            f"{nbytes} is in use, but the driver's process lists could not be read. Some of it may"
            " belong to the processes that have the GPU open."
        )
    if ledger.unreadable_processes:
        return (
            f"{nbytes} is in use by no visible process. You have no permission to read the open files"
            f" of {counted(ledger.unreadable_processes, 'process')}."
        )
    return f"{nbytes} is in use, and no visible process, exported allocation or dma-buf accounts for it."


def _remedies(ledger: Ledger, gpu: GpuLedger) -> tuple[Remedy, ...]:
    keep = Remedy(
        step="look",
        target=f"gpu {gpu.index}",
        text="Save a snapshot: the file has everything that a bug report needs.",
        command="vram snapshot -o vram-snapshot.json --redact",
    )
    return (keep,) if ledger.host.uid == 0 else (remedies.see_more(ledger.host), keep)

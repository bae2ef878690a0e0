"""VR106 Unexplained bytes: in use, and nothing that can be seen accounts for them.

What it detects
---------------
A GPU uses more than all processes, exported allocations, dma-bufs, contexts and reserved memory
together explain. Amounts below 64 MiB are not reported: drivers round, and contexts cost a little
more than their process is charged.

Why it happens
--------------
The holder is not visible (another user, another PID namespace, a virtual machine, the Windows
side of WSL2), a kernel module holds the memory (display, RDMA peer memory), or the driver does
not tell figures per process on this system. On GPUs of AMD and Intel the driver's own part (page
tables, firmware, screen buffers) is told nowhere; up to 512 MiB is taken for that.

How to confirm
--------------
Look with full rights; see which modules and processes have the driver open:

    sudo vram why
    lsmod | grep -E '^nvidia'
    sudo fuser -v /dev/nvidia*

Remedies and their risk
-----------------------
- Look again with sudo, outside containers. No risk.
- Take a snapshot and attach it to a bug report: `vram snapshot -o FILE --redact`. No risk.
- There is nobody to end: act only once the holder has a name.

Source
------
Measured on an H200, driver 580.159: a context uses 526.8 MiB while its process is charged with
518.0. Under WSL2 the driver gives no figures per process (read in NVIDIA's documentation).
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import MIB, counted, size

CODE = "VR106"

# Several times what a context costs beyond its charge (8.8 MiB on an H200, driver 580.159).
_SMALL = 64 * MIB


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        nbytes = known_bytes(entry for entry in gpu.entries if entry.kind == "unattributed")
        if nbytes >= _SMALL:
            yield _finding(ledger, gpu, nbytes)


def _finding(ledger: Ledger, gpu: GpuLedger, nbytes: int) -> Finding:
    lines = [line for entry in gpu.entries if entry.kind == "unattributed" for line in entry.evidence]
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} in use that nothing explains",
        nbytes=nbytes,
        cause=_cause(ledger, gpu, nbytes),
        gpus=(gpu.index,),
        evidence=words.evidence(lines),
        remedies=_ways_out(ledger, gpu),
        severity="warning",
    )


def _cause(ledger: Ledger, gpu: GpuLedger, nbytes: int) -> str:
    if gpu.windows is not None and gpu.windows.read:
        return (
            f"{size(nbytes)} are in use, and in the counters of no Windows process: the display, Windows"
            " itself and memory that is just being freed are in none."
        )
    if ledger.host.wsl:
        return (
            f"{size(nbytes)} are in use, and under WSL2 the driver does not say by whom: Windows programs"
            " and other distributions count too."
        )
    if gpu.status in ("failed", "timeout", "denied"):
        return (
            f"{size(nbytes)} are in use, and the driver's process lists, which would tell by whom, could not"
            " be read. Some of it may be the processes' that have the GPU open."
        )
    if ledger.unreadable_processes:
        return (
            f"{size(nbytes)} are in use by nobody we can see; the files of"
            f" {counted(ledger.unreadable_processes, 'process')} may not be read."
        )
    return (
        f"{size(nbytes)} are in use, and no process, exported allocation or dma-buf that can be seen from"
        " here accounts for them."
    )


def _ways_out(ledger: Ledger, gpu: GpuLedger) -> tuple[Remedy, ...]:
    keep = Remedy(
        step="look",
        target=f"gpu {gpu.index}",
        text="Keep what was seen: the file holds everything that a bug report needs.",
        command="vram snapshot -o vram-snapshot.json --redact",
    )
    if ledger.host.uid != 0:
        return (remedies.see_more(ledger.host), keep)
    return (keep,)

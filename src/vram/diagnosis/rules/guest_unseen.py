"""VR604 Held by WSL2, by nobody here: its machine has memory and no process to show for it.

What it detects
---------------
Windows counts device memory for the virtual machine of WSL2, 64 MiB or more, and no process that
can be read in this distribution has /dev/dxg open.

Why it happens
--------------
Every distribution runs in that one machine, each in a PID namespace of its own: a process of
another distribution, of Docker Desktop's, of a container, or of another user here holds it. Or a
process ended a moment ago and Windows has not taken its memory back yet.

How to confirm
--------------
See which distributions run, and look with full rights in each:

    wsl.exe --list --running
    sudo fuser -v /dev/dxg

Remedies and their risk
-----------------------
- Look with full rights, and in the other distributions. No risk.
- End one distribution: wsl.exe --terminate NAME. Everything in it ends, unsaved work is lost.
- wsl.exe --shutdown ends the machine, with every distribution, this one and Docker's included.
  All its memory comes back. vram never runs it.

Source
------
Microsoft documents that all distributions share one virtual machine and what --shutdown does. The
counting under vmmemWSL is read in reports, not measured on hardware by vram.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.units import MIB, size

CODE = "VR604"

_LEAST = 64 * MIB


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        unseen = [entry for entry in gpu.entries if entry.kind == "guest" and (entry.nbytes or 0) >= _LEAST]
        if unseen and not any(entry.holder and entry.holder.alive for entry in gpu.entries):
            yield _finding(ledger, gpu, unseen)


def _finding(ledger: Ledger, gpu: GpuLedger, unseen: list[Entry]) -> Finding:
    nbytes = known_bytes(unseen)
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} held by WSL2, and by no process seen here",
        nbytes=nbytes,
        cause=(
            f"Windows counts {size(nbytes)} of GPU {gpu.index} for all of WSL2, and nobody here has the GPU"
            " open: another distribution, a container or another user."
        ),
        gpus=(gpu.index,),
        evidence=words.evidence(line for entry in unseen for line in entry.evidence),
        remedies=remedies.ordered((*_looks(ledger, gpu), *_ends(gpu))),
        severity="warning",
    )


def _looks(ledger: Ledger, gpu: GpuLedger) -> Iterator[Remedy]:
    if ledger.host.uid != 0:
        yield remedies.see_more(ledger.host)
    text = "See which other distributions run, and look in them too."
    yield Remedy(step="look", target=f"gpu {gpu.index}", text=text, command="wsl.exe --list --running")


def _ends(gpu: GpuLedger) -> Iterator[Remedy]:
    target = f"gpu {gpu.index}"
    one = "End the distribution that holds it, with everything in it: wsl.exe --terminate and its name."
    yield Remedy(step="end", target=target, text=one, harm="loses-work")
    text = (
        "Shut WSL2 down: it ends every distribution, this one and Docker's included, and gives all of its"
        " memory back."
    )
    yield Remedy(step="end", target=target, text=text, command="wsl.exe --shutdown", harm="affects-others")

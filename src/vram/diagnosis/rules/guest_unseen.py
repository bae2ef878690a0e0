"""VR604 Held by WSL2, holder not visible: no process in this distribution explains it.

What it detects
---------------
Windows counts 64 MiB or more of device memory for the WSL2 virtual machine, and no process that can
be read in this distribution has /dev/dxg open.

Why it happens
--------------
All distributions run in that one virtual machine, each in its own PID namespace. The holder is a
process of another distribution, of Docker Desktop's, of a container, or of another user here. Or a
process has just exited and Windows has not freed its memory yet.

How to confirm
--------------
List the running distributions, and check as root in each:

    wsl.exe --list --running
    sudo fuser -v /dev/dxg

Remedies and their risk
-----------------------
- Run vram as root, and in the other distributions. No risk.
- Terminate one distribution: `wsl.exe --terminate NAME`. Everything in it ends, unsaved work is
  lost.
- `wsl.exe --shutdown` stops the virtual machine with every distribution, including this one and
  Docker's. All its memory is freed. vram never runs it.

Source
------
Microsoft documents that all distributions share one virtual machine and what --shutdown does. That
memory is counted under vmmemWSL is known from reports, not measured on hardware by vram.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies
from vram.diagnosis.held import finding_about
from vram.ledger.holds import narrow, on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.units import MIB, size

CODE = "VR604"

_MIN_BYTES = 64 * MIB


def judge(ledger: Ledger) -> Iterator[Finding]:
    if not any(gpu.of_kind("guest") for gpu in ledger.gpus):
        return
    for gpu, holds in on_each_gpu(ledger, lambda entry: True, empty=True):
        unseen = [each for hold in holds if (each := narrow(hold, _is_large_guest))]
        entries = (entry for hold in holds for entry in hold.entries)
        if unseen and not any(entry.holder and entry.holder.alive for entry in entries):
            yield _finding(ledger, gpu, unseen)


def _is_large_guest(entry: Entry) -> bool:
    return entry.kind == "guest" and (entry.nbytes or 0) >= _MIN_BYTES


def _finding(ledger: Ledger, gpu: GpuLedger, unseen: list[Hold]) -> Finding:
    nbytes = size(sum(hold.known_bytes for hold in unseen))
    return finding_about(
        *unseen,
        code=CODE,
        title=f"{nbytes} of GPU {gpu.index} held by WSL2, but by no process visible here",
        cause=(
            f"Windows counts {nbytes} of GPU {gpu.index} for WSL2, but no visible process has the GPU open."
            " The holder is in another distribution or a container, or belongs to another user."
        ),
        remedies=remedies.ordered(_remedies(ledger, f"gpu {gpu.index}")),
        severity="warning",
    )


def _remedies(ledger: Ledger, target: str) -> Iterator[Remedy]:
    if ledger.host.uid != 0:
        yield remedies.see_more(ledger.host)
    text = "List the running distributions, and run vram in them too."
    yield Remedy(step="look", target=target, text=text, command="wsl.exe --list --running")
    one = "Terminate the distribution that holds it, and everything in it: wsl.exe --terminate NAME."
    yield Remedy(step="end", target=target, text=one, harm="loses-work")
    text = (
        "Shut down WSL2: this ends every distribution, including this one and Docker's, and frees all its"
        " memory."
    )
    yield Remedy(step="end", target=target, text=text, command="wsl.exe --shutdown", harm="affects-others")

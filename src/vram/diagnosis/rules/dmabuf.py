"""VR104 dma-buf: a shared buffer holds GPU memory that no process list names.

What it detects
---------------
GPU memory that was exported as a dma-buf is still in use: some process holds the dma-buf's
descriptor, and the driver's lists charge nobody with it.

Why it happens
--------------
A dma-buf lets other devices (network cards for RDMA, video, displays) access GPU memory. It is a
reference of its own: the memory stays in use until its last descriptor closes and the last device
detaches, even if the process that allocated it is gone and the holder never used CUDA.

How to confirm
--------------
The descriptor's fdinfo shows its size and who exported it (exp_name: nv_dmabuf):

    sudo ls -l /proc/HOLDER_PID/fd | grep dmabuf
    sudo cat /proc/HOLDER_PID/fdinfo/FD

Remedies and their risk
-----------------------
- Make the holder deregister the buffer and close the descriptor: the memory is freed at once.
  No risk if no transfer is in progress.
- `vram kill PID` terminates the holder. Unsaved work and open transfers are lost. All holders of
  the dma-buf must release it. `vram free` does not do it by itself: anybody can hand a dma-buf to a
  service that takes them, and the service may be at work.
- To prevent it, close dma-buf descriptors after registering them, and deregister on every path
  out of the program.

Source
------
Measured on an H200, driver 580.159: allocator killed, 2048 MiB stayed in use, the process lists
were empty; fdinfo of the holder's descriptor said size: 2147483648 and exp_name: nv_dmabuf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory
from vram.diagnosis.leftover import leftover_findings
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.units import size

CODE = "VR104"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _by_dmabuf, title=_title, cause=_cause, gentler=_gentler)


def _by_dmabuf(entry: Entry) -> bool:
    return entry.kind == "exported" and entry.medium == "dmabuf"


def _title(held: HeldMemory) -> str:
    return f"{size(held.nbytes)} held by a dma-buf in {words.pids(held.living)}"


def _cause(held: HeldMemory) -> str:
    if not held.certain:
        return (
            f"{size(held.nbytes)} of GPU memory is charged to no process. Most likely it is held by a"
            f" dma-buf that is open in {words.processes(held.living)}; that needs no context."
        )
    return (
        f"A dma-buf on {size(held.nbytes)} of GPU memory is open in {words.processes(held.living)}."
        " That needs no context, so the driver's lists charge nobody."
    )


def _gentler(held: HeldMemory) -> Iterable[Remedy]:
    return (_close(held),)


def _close(held: HeldMemory) -> Remedy:
    text = "Make the holder deregister the buffer and close its descriptor; that alone frees the memory."
    return remedies.for_processes(held.living, step="change", text=text)

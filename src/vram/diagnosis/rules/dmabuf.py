"""VR104 dma-buf: a shared buffer holds GPU memory that no process list names.

What it detects
---------------
GPU memory that was exported as a dma-buf is still in use: some process holds the dma-buf's
descriptor, and the driver's lists charge no process with it.

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

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.leftover import Description, leftover_findings
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR104"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _describe)


def _describe(hold: Hold) -> Description:
    nbytes, holders = size(hold.known_bytes), words.processes(hold.holders)
    cause = (
        f"A dma-buf on {nbytes} of GPU memory is open in {holders}."
        " That needs no context, so the driver's lists charge no process."
    )
    if not hold.certain:
        cause = (
            f"{nbytes} of GPU memory is charged to no process. Most likely it is held by a dma-buf that is"
            f" open in {holders}; that needs no context."
        )
    close = "Make the holder deregister the buffer and close its descriptor; that alone frees the memory."
    return (
        f"{nbytes} held by a dma-buf in {words.pids(hold.holders)}",
        cause,
        (remedies.for_processes(hold.holders, step="change", text=close),),
    )

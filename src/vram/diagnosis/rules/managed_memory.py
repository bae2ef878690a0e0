"""VR207 Managed memory: a process uses more of the GPU than any process list says.

What it detects
---------------
Memory is in use that no process is charged with, and a process on that GPU has managed memory
(cudaMallocManaged, unified memory) that accounts for it.

Why it happens
--------------
Managed memory moves between the host and the GPUs page by page. Pages on a GPU use its memory, but
the driver charges them to no process: nvidia-smi shows the memory as used and the process with
only its context. The GPU's memory stays in use when the host reads or writes the data, and when the
data are prefetched to the host. It is returned by the free, or when other managed memory needs the
room.

How to confirm
--------------
The process has a mapping of /dev/nvidia-uvm of about the missing size:

    grep nvidia-uvm /proc/PID/maps

Remedies and their risk
-----------------------
- Do nothing: the memory is in use. It is evicted when other managed memory needs the room, but not
  for plain allocations of other processes.
- In the program: free it when the GPU is done with it. No risk.
- Kill the process: its unsaved work is lost, and all of the memory is freed.

Source
------
Measured on an H200, driver 580.159: 1024 MiB of managed memory filled by the device were used and
not listed (the list kept saying 518 MiB), stayed when the host wrote to them, and were available
again when freed. The process had a mapping of /dev/nvidia-uvm of exactly that size. 256 MiB that
were prefetched to the host stayed in use as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather
from vram.model.finding import Finding
from vram.model.ledger import Entry, Ledger
from vram.units import size

CODE = "VR207"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for held in gather(ledger.gpus, _is_managed):
        if held.holder is not None:
            yield _finding(held)


def _is_managed(entry: Entry) -> bool:
    return entry.medium == "managed"


def _finding(held: HeldMemory) -> Finding:
    holder = held.holder
    assert holder is not None
    return Finding(
        code=CODE,
        title=f"{size(held.nbytes)} of managed memory of pid {holder.pid}, in no process list",
        nbytes=held.nbytes,
        cause=(
            f"{words.process(holder)} has managed memory on {words.gpus(held.gpus)}. The driver's process"
            " lists do not include it, so they add up to less than is used."
        ),
        gpus=held.gpus,
        pids=(holder.pid,),
        evidence=words.evidence(held.evidence),
        remedies=remedies.look([holder], "Check what it does; the memory is in use."),
        severity="info",
    )

"""VR207 Managed memory: a process has more on the GPU than any process list says.

What it detects
---------------
Bytes are in use that nobody is charged for, and a process on that GPU has managed memory
(cudaMallocManaged, unified memory) that accounts for them.

Why it happens
--------------
Managed memory moves between the host and the GPUs page by page. What lies on a GPU is used there,
but the driver charges it to no process: nvidia-smi shows the memory as used and the process with
its context alone. It goes back to the host only when the GPU needs the room or the program asks
for it, not when the host reads it.

How to confirm
--------------
The process maps /dev/nvidia-uvm with about the size that is missing:

    grep nvidia-uvm /proc/PID/maps

Remedies and their risk
-----------------------
- Nothing: it is in use, and gives way when other managed memory needs the room. It does not give
  way to plain allocations of other processes.
- In the program: free it, or prefetch it to the host when the GPU is done with it. No risk.
- End the process: its unsaved work is lost. All of it comes back.

Source
------
Measured on an H200, driver 580.159: 1024 MiB of managed memory filled by the device were used and
not listed (the list kept saying 518 MiB), stayed when the host wrote to them, and came back when
they were freed. The process showed a mapping of /dev/nvidia-uvm of exactly that size.
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
        title=f"{size(held.nbytes)} of managed memory, in no process list",
        nbytes=held.nbytes,
        cause=(
            f"{words.process(holder)} has managed memory on {words.gpus(held.gpus)}. The driver's lists"
            " leave it out, so they add up to less than is used."
        ),
        gpus=held.gpus,
        pids=(holder.pid,),
        evidence=words.evidence(held.evidence),
        remedies=remedies.look([holder], "See what it does; the memory is in use."),
        severity="info",
    )

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
from vram.diagnosis.held import finding_about
from vram.ledger.holds import find_holds, narrow
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Entry, Holder, Ledger
from vram.units import size

CODE = "VR207"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in find_holds(ledger):
        managed = narrow(hold, _is_managed) if hold.what == "process" else None
        if managed is not None:
            yield _finding(managed, managed.holders[0])


def _is_managed(entry: Entry) -> bool:
    return entry.medium == "managed" and bool(entry.nbytes)


def _finding(hold: Hold, holder: Holder) -> Finding:
    return finding_about(
        hold,
        code=CODE,
        title=f"{size(hold.known_bytes)} of managed memory of pid {holder.pid}, in no process list",
        cause=(
            f"{words.process(holder)} has managed memory on {words.gpus(hold.gpus)}. The driver's process"
            " lists do not include it, so they add up to less than is used."
        ),
        pids=(holder.pid,),
        remedies=remedies.look([holder], "Check what it does; the memory is in use."),
        severity="info",
    )

"""VR103 Exported handle: an open descriptor holds memory that no process list names.

What it detects
---------------
Memory that was exported as a file descriptor is still in use after the process that allocated it
exited or freed it: some process holds the descriptor. That process needs no context and may never
have used CUDA, so nvidia-smi lists no process.

Why it happens
--------------
An allocation made with cuMemCreate and exported with cuMemExportToShareableHandle lives as long
as any descriptor on it: in the process that received it over a socket, in a forked child, or in
a broker that forgot to close it. Such a descriptor looks like any other on /dev/nvidiactl; vram
knows that it is an allocation when a copy of it can be imported. It does not say who allocated the
memory: if a process that is still alive could have, and may be charged for it, the finding says
"likely".

How to confirm
--------------
The holder has /dev/nvidiactl open, and no /dev/nvidia0 beside it:

    sudo ls -l /proc/HOLDER_PID/fd | grep /dev/nvidia

Remedies and their risk
-----------------------
- Make the holder close the descriptor: the memory is freed at once. No risk.
- `vram kill PID` terminates the holder. Unsaved work is lost. If several processes hold the
  descriptor, all of them must close it or exit. `vram free` does not do it by itself: anybody can
  hand a descriptor to a service that takes them, and the service may be at work.
- To prevent it, close the exported descriptor on both sides as soon as it was imported, and open
  it close-on-exec.

Source
------
Measured on an H200, driver 580.159: allocator killed, 4096 MiB stayed in use, the process lists
were empty; the holder had one descriptor on /dev/nvidiactl and no mappings. A copy of it, taken
with pidfd_getfd, could be imported.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.leftover import Description, leftover_findings
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR103"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _describe)


def _describe(hold: Hold) -> Description:
    nbytes, holders = size(hold.known_bytes), words.processes(hold.holders)
    cause = (
        f"No process is charged with this memory, but an exported handle on it is open in {holders}."
        f" Closing it frees {nbytes}."
    )
    if not hold.certain:
        cause = (
            f"{nbytes} is charged to no process. Most likely it is held by an exported handle that is open in"
            f" {holders}; closing it then frees the memory."
        )
    close = "Make the holder close the descriptor; that alone frees the memory."
    return (
        f"{nbytes} held by an exported handle in {words.pids(hold.holders)}",
        cause,
        (remedies.for_processes(hold.holders, step="change", text=close),),
    )

"""VR203 Zombie parent: it has exited, and its living children hold its memory.

What it detects
---------------
The driver's process list charges a zombie, and living processes hold the driver's files that they
inherited from it.

Why it happens
--------------
A zombie is a process that has exited and waits for its parent to collect its exit status. Its files
are closed, so it holds nothing itself. Its forked children have copies of those files, and they
hold everything. `kill` on the zombie does nothing, and reaping it frees no GPU memory.

How to confirm
--------------
The charged pid shows state Z; the children have the device files open:

    ps -o pid,ppid,stat,args -p CHARGED_PID
    sudo ls -l /proc/CHILD_PID/fd | grep /dev/nvidia

Remedies and their risk
-----------------------
- Let the children finish, or make them close the inherited descriptors. No risk.
- `vram free` terminates all children that are proven to hold it. Their parent is gone and nobody
  uses this memory.
- Do not kill the zombie's own parent to have the zombie reaped: that frees no GPU memory.

Source
------
Measured on an H200, driver 580.159: a killed process that had not been reaped held nothing; a
forked child held a dead parent's 4 GiB and context, charged to the parent's pid.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.diagnosis.leftover import Description, leftover_findings
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR203"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _describe)


def _describe(hold: Hold) -> Description:
    nbytes, pid = size(hold.known_bytes), hold.dead_pid
    likely = "" if hold.certain else "most likely "
    ignore = f"Ignore zombie {pid}: reaping it frees no GPU memory."
    return (
        f"{nbytes} of zombie pid {pid}, {words.charged_to(hold)}",
        f"Pid {pid} is a zombie and holds nothing itself. Its open device files, and with them {nbytes}, were"
        f" {likely}inherited by {words.inheriting(hold)}.",
        (Remedy(step="keep", target=f"pid {pid}", text=ignore, pids=() if pid is None else (pid,)),),
    )

"""VR101 Orphaned by fork: a forked child holds the memory of a process that is dead.

What it detects
---------------
The driver's process list charges a pid that no longer exists, and a living process holds the
driver's files that it inherited from that pid by fork.

Why it happens
--------------
GPU memory belongs to open files, not to processes. A fork copies the parent's descriptors, and
the memory is freed only when the last copy closes. If the parent dies first, the driver keeps
charging the parent's pid: nvidia-smi shows a pid that does not exist, or no process at all,
while the child, which may never have used the GPU, holds every byte and the context too.
Usual children: data-loader workers, job launchers, log shippers, anything started with the
"fork" method after CUDA was initialised.
AMD and Intel drivers do not list who opened a device file. If several processes share one and none
of them is the parent of another, the process that opened it is taken to be dead ("likely").
If several parents died, session, process group and parent pid show whose child is whose. If they
do not, each child holds the memory of one of the dead processes, but it is unknown which.

How to confirm
--------------
The charged pid is gone, and the child has the device files open:

    ps -p CHARGED_PID
    sudo ls -l /proc/CHILD_PID/fd | grep /dev/nvidia

Remedies and their risk
-----------------------
- Let the child finish, or make it close the inherited descriptors: the memory is freed at once,
  even though mappings remain. No risk.
- `vram free` terminates all children that are proven to hold it; the memory is freed when the
  last one exits. This memory is not in use. `vram kill PID` also terminates children that only
  probably hold it.
- To prevent it, start workers with "spawn" or "forkserver", or before CUDA is first used, and
  make workers exit with their parent (prctl PR_SET_PDEATHSIG, or a pipe that closes).
- Resetting the GPU does not help while the child is alive.

Source
------
Measured on an H200, driver 580.159: parent with 4 GiB killed, child asleep: 4 GiB and the
context stayed, charged to the dead parent with 4614 MiB; the child had its 23 descriptors.
Closing them in the child freed everything while its 30 mappings remained.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.leftover import Description, leftover_findings
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR101"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _describe)


def _describe(hold: Hold) -> Description:
    nbytes, who = size(hold.known_bytes), words.inheriting(hold)
    likely = "" if hold.certain else "most likely "
    prevent = "Prevent it: start workers with spawn or forkserver, or before CUDA is first used."
    return (
        f"{nbytes} of dead pid {hold.dead_pid}, {words.charged_to(hold)}",
        f"Pid {hold.dead_pid} is dead, and {who} {likely}inherited its open device files by fork."
        f" The driver frees the {nbytes} when the last copy of them is closed.",
        (
            *remedies.look(hold.holders, "Check what it does; it may exit on its own."),
            Remedy(step="change", target="program", text=prevent),
        ),
    )

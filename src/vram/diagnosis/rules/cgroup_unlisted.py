"""VR304 Counted for a control group: no listed or visible process has it.

What it detects
---------------
Memory in use that no process list names and no visible process explains, and that the kernel
counts for a control group: 2 MiB or more beyond what the group's own processes are charged with.

Why it happens
--------------
Linux 6.14 and later with driver 615 and later count GPU memory for control groups (the dmem
controller). Memory stays counted for the group of the process that allocated it: when that process
is dead and its memory is held by an exported handle, or when its processes are not visible from
here, the group is what remains known.

How to confirm
--------------
The group's own figure, and its processes:

    cat /sys/fs/cgroup/GROUP/dmem.current
    cat /sys/fs/cgroup/GROUP/cgroup.procs

Remedies and their risk
-----------------------
- Look at the group's processes: `systemd-cgls /sys/fs/cgroup/GROUP`. No risk.
- Ask the owner of the pod, job or service to end it. What it has not saved is lost.

Source
------
NVIDIA's page "MPS v3 Memory Partitioning" and the kernel's documentation of dmem. No such driver
was at hand: how exactly the figures agree with those of the process lists was not measured.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.diagnosis.held import finding_about, hidden_holds
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR304"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu, holds in hidden_holds(ledger, "cgroup"):
        for hold in holds:
            group = hold.entries[0].cgroup
            path = words.shown(group.path) if group else "unknown"
            last = path.rpartition("/")[2]
            whose = (words.belonging(group.workload) if group else "") or f"control group {last}"
            nbytes = size(hold.known_bytes)
            look = f"Look at the processes of {whose}; its group is {path}."
            yield finding_about(
                hold,
                code=CODE,
                title=f"{nbytes} of GPU {gpu.index} in no list, of {whose}",
                cause=f"The kernel counts {nbytes} of GPU {gpu.index} for {whose} beyond what its listed"
                " processes hold. Its maker is dead, or not visible from here.",
                remedies=(Remedy(step="look", target=f"gpu {gpu.index}", text=look),),
                severity="warning",
            )

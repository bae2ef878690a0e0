"""VR105 No visible holder: a dead pid is charged, and no visible process holds its memory.

What it detects
---------------
The driver's process list charges a pid that does not exist (any more), and none of the processes
whose open files can be read holds that memory.

Why it happens
--------------
Memory always has a holder, but the holder may not be visible: it is a process of another user
whose files cannot be read, or a process outside this PID namespace, or the driver is still tearing
the process down. If the pid was reused, the process that has it now is unrelated. A process whose
first thread exited while others keep running looks like a zombie to `ps`; vram checks its other
threads and treats it as alive.

How to confirm
--------------
Run vram as root, then read the driver's messages:

    sudo vram why
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Run it again with sudo, outside containers. No risk.
- Wait a moment and run it again: tearing down a large process takes time. No risk.
- Never signal the charged pid: if it exists now, it is a different process.
- If the memory stays in use and root sees no holder, stop all other work on the GPU and reset it,
  or restart the machine: everything else on the GPU is lost.

Source
------
Measured on an H200, driver 580.159: a killed process's memory was free 110 ms after the signal,
when its parent's wait returned; a zombie held nothing; memory that stayed in use always had a
holder.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies
from vram.diagnosis.held import finding_about
from vram.diagnosis.leftover import ghosts_of
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Ledger
from vram.units import counted, size

CODE = "VR105"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in ghosts_of(CODE, ledger):
        pid = hold.dead_pid
        yield finding_about(
            hold,
            code=CODE,
            title=f"{size(hold.known_bytes)} charged to {_named(pid)}; its holder is not visible",
            cause=_cause(ledger, hold, pid),
            pids=() if pid is None else (pid,),
            remedies=_remedies(ledger, hold),
        )


def _named(pid: int | None) -> str:
    return "an unknown pid" if pid is None else f"dead pid {pid}"


def _cause(ledger: Ledger, hold: Hold, pid: int | None) -> str:
    where = "No visible process has its device files open."
    if not ledger.host.initial_pid_namespace:
        where = "The holder may be outside this PID namespace."
    elif ledger.unreadable_processes:
        unread = counted(ledger.unreadable_processes, "process")
        where = f"The holder may be among {unread} whose open files you have no permission to read."
    return f"The driver charges {size(hold.known_bytes)} to {_named(pid)}. {where}"


def _remedies(ledger: Ledger, hold: Hold) -> tuple[Remedy, ...]:
    wait = Remedy(
        step="wait",
        target="host",
        text="Wait a moment, then run it again: the driver may still be tearing the process down.",
        command="vram why",
    )
    if ledger.host.uid != 0:
        return (remedies.see_more(ledger.host), wait)
    return (wait, remedies.kernel_log("host", remedies.drivers(ledger, hold.gpus)))

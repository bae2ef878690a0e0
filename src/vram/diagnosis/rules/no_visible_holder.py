"""VR105 No visible holder: a dead pid is charged, and no visible process holds its memory.

What it detects
---------------
The driver's process list charges a pid that is not there (any more), and among the processes
whose files can be read none holds the files that would explain it.

Why it happens
--------------
Memory always has a holder. It may not be visible: a process of another user whose files may not
be read, a process outside this PID namespace, or the driver is still tearing the process down. A
pid that was reused names a newcomer that has nothing to do with it. A process whose first thread
ended while others run on looks like a zombie to `ps`; vram looks at its other threads and takes it
for what it is, alive.

How to confirm
--------------
Look with full rights, then ask for the driver's own words:

    sudo vram why
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Look again with sudo, outside containers. No risk.
- Wait a moment and look again: tearing down a large process takes time. No risk.
- Never signal the charged pid: whoever has that number now is somebody else.
- If it stays although root sees no holder, empty the GPU of other work and reset it, or restart
  the machine: everything else on the GPU is lost.

Source
------
Measured on an H200, driver 580.159: a killed process's memory was back 110 ms after the signal,
when its parent's wait returned; a zombie held nothing; what stayed always had a holder.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather
from vram.ledger.processes import living_holder
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.units import counted, size

CODE = "VR105"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for held in gather(ledger.gpus, _unkept):
        pid = _charged(held)
        yield Finding(
            code=CODE,
            title=f"{size(held.nbytes)} charged to {_named(pid)}, holder not visible",
            nbytes=held.nbytes,
            cause=_cause(ledger, held, pid),
            gpus=held.gpus,
            pids=() if pid is None else (pid,),
            evidence=words.evidence(held.evidence),
            remedies=_ways_out(ledger, held),
        )


def _unkept(entry: Entry) -> bool:
    charged = entry.kind == "orphaned" or (entry.kind_facts.charged and entry.holder is not None)
    return charged and living_holder(entry) is None


def _charged(held: HeldMemory) -> int | None:
    if held.charged_pid is not None:
        return held.charged_pid
    return held.holder.pid if held.holder else None


def _named(pid: int | None) -> str:
    return "an unknown pid" if pid is None else f"dead pid {pid}"


def _cause(ledger: Ledger, held: HeldMemory, pid: int | None) -> str:
    where = "no process that can be seen from here holds its files"
    if not ledger.host.initial_pid_namespace:
        where = "its holder may live outside this PID namespace"
    elif ledger.unreadable_processes:
        unread = counted(ledger.unreadable_processes, "process")
        where = f"its holder may be among {unread} whose files may not be read"
    return f"The driver charges {size(held.nbytes)} to {_named(pid)}, and {where}."


def _ways_out(ledger: Ledger, held: HeldMemory) -> tuple[Remedy, ...]:
    wait = Remedy(
        step="wait",
        target="host",
        text="Wait a moment, then run it again: the driver may still be tearing the process down.",
        command="vram why",
    )
    if ledger.host.uid != 0:
        return (remedies.see_more(ledger.host), wait)
    return (wait, remedies.kernel_log("host", remedies.drivers(ledger, held.gpus)))

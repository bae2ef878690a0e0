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
            title=f"{size(held.nbytes)} charged to {_named(pid)}; its holder is not visible",
            nbytes=held.nbytes,
            cause=_cause(ledger, held, pid),
            gpus=held.gpus,
            pids=() if pid is None else (pid,),
            evidence=words.evidence(held.evidence),
            remedies=_remedies(ledger, held),
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
    where = "No visible process has its device files open."
    if not ledger.host.initial_pid_namespace:
        where = "The holder may be outside this PID namespace."
    elif ledger.unreadable_processes:
        unread = counted(ledger.unreadable_processes, "process")
        where = f"The holder may be among {unread} whose open files you have no permission to read."
    return f"The driver charges {size(held.nbytes)} to {_named(pid)}. {where}"


def _remedies(ledger: Ledger, held: HeldMemory) -> tuple[Remedy, ...]:
    wait = Remedy(
        step="wait",
        target="host",
        text="Wait a moment, then run it again: the driver may still be tearing the process down.",
        command="vram why",
    )
    if ledger.host.uid != 0:
        return (remedies.see_more(ledger.host), wait)
    return (wait, remedies.kernel_log("host", remedies.drivers(ledger, held.gpus)))

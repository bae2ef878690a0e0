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

from collections.abc import Iterable, Iterator

from vram.diagnosis import words
from vram.diagnosis.held import HeldMemory
from vram.diagnosis.leftover import leftover_findings
from vram.ledger.processes import living_holder
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.units import size

CODE = "VR203"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _left_by_zombie, title=_title, cause=_cause, gentler=_gentler)


def _left_by_zombie(entry: Entry) -> bool:
    return entry.kind == "orphaned" and entry.charged_state == "Z" and living_holder(entry) is not None


def _title(held: HeldMemory) -> str:
    holders = words.charged_to(held.living, certain=held.certain, one_of=held.one_of)
    return f"{size(held.nbytes)} of zombie pid {held.charged_pid}, {holders}"


def _cause(held: HeldMemory) -> str:
    likely = "" if held.certain else "most likely "
    who = ("one of " if held.one_of else "") + words.processes(held.living)
    return (
        f"Pid {held.charged_pid} is a zombie and holds nothing itself. Its open device files, and with"
        f" them {size(held.nbytes)}, were {likely}inherited by {who}."
    )


def _gentler(held: HeldMemory) -> Iterable[Remedy]:
    return (_leave_zombie(held),)


def _leave_zombie(held: HeldMemory) -> Remedy:
    text = f"Ignore zombie {held.charged_pid}: reaping it frees no GPU memory."
    pids = () if held.charged_pid is None else (held.charged_pid,)
    return Remedy(step="keep", target=f"pid {held.charged_pid}", text=text, pids=pids)

"""VR204 Deleted executable: a program that is no longer installed still holds memory.

What it detects
---------------
A living process keeps GPU memory, and the file it was started from has been deleted or replaced.

Why it happens
--------------
An upgrade replaced the program while it ran; a virtual environment or a container image layer was
removed under it; a build directory was cleaned. The old program goes on, often forgotten: service
managers may already run the new one beside it.

How to confirm
--------------
The link to the executable ends in "(deleted)":

    sudo ls -l /proc/PID/exe

Remedies and their risk
-----------------------
- See whether a newer copy of the same program runs beside it; then the old one is a leftover.
- Restart it when its work allows: unsaved work is lost.
- A program that must go on may go on: the deleted file alone does no harm, but it can fail when
  it loads another part of itself.

Source
------
The "(deleted)" mark of /proc/PID/exe is documented in proc_pid_exe(5).
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather
from vram.ledger.processes import living_holder
from vram.model.finding import Finding
from vram.model.ledger import Entry, Holder, Ledger
from vram.units import size

CODE = "VR204"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for held in gather(ledger.gpus, _held_by_deleted):
        if held.holder is not None:
            yield _finding(ledger, held, held.holder)


def _held_by_deleted(entry: Entry) -> bool:
    holder = living_holder(entry)
    return holder is not None and holder.executable_deleted


def _finding(ledger: Ledger, held: HeldMemory, holder: Holder) -> Finding:
    told = f"the executable of pid {holder.pid} is deleted"
    if holder.executable:
        told += f": {holder.executable}"
    return Finding(
        code=CODE,
        title=f"{size(held.nbytes)} held by pid {holder.pid}, whose program was deleted",
        nbytes=held.nbytes,
        cause=(
            f"{words.process(holder)} runs from a file that was deleted or replaced since, and keeps"
            f" {size(held.nbytes)}. It may be a forgotten old version."
        ),
        gpus=held.gpus,
        pids=(holder.pid,),
        evidence=words.evidence((told,), held.evidence),
        remedies=remedies.ordered(
            (
                *remedies.look((holder,), "See what it is, and whether a newer copy runs beside it."),
                *remedies.end(ledger.host, held.living, certain=held.certain),
            )
        ),
        severity="warning",
    )

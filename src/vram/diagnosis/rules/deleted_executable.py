"""VR204 Deleted executable: a program whose file is gone still holds memory.

What it detects
---------------
A living process holds GPU memory, and the file it was started from has been deleted or replaced.

Why it happens
--------------
An upgrade replaced the program while it ran, its virtual environment or container image layer was
removed, or a build directory was cleaned. The old program keeps running, often forgotten; a service
manager may already run the new one too.

How to confirm
--------------
The link to the executable ends in "(deleted)":

    sudo ls -l /proc/PID/exe

Remedies and their risk
-----------------------
- Check whether a newer copy of the same program is running; then the old one is a leftover.
- Restart it when convenient: unsaved work is lost.
- It can also keep running: the deleted file alone does no harm, but the program can fail when it
  loads another of its files.

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
        title=f"{size(held.nbytes)} held by pid {holder.pid}, whose executable was deleted",
        nbytes=held.nbytes,
        cause=(
            f"{words.process(holder)} holds {size(held.nbytes)}, and its executable was deleted or"
            " replaced since it started. It may be a forgotten old version."
        ),
        gpus=held.gpus,
        pids=(holder.pid,),
        evidence=words.evidence((told,), held.evidence),
        remedies=remedies.ordered(
            (
                *remedies.look((holder,), "Check what it is, and whether a newer copy is running."),
                *remedies.end(ledger.host, held.living, certain=held.certain),
            )
        ),
        severity="warning",
    )

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
from vram.diagnosis.held import finding_about
from vram.ledger.holds import by_first_holder, everyone, find_holds
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.units import size

CODE = "VR204"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in find_holds(ledger):
        for holder, held in by_first_holder(hold, lambda each: each.executable_deleted):
            yield _finding(ledger, held, holder)


def _finding(ledger: Ledger, held: Hold, holder: Holder) -> Finding:
    told = f"the executable of pid {holder.pid} is deleted"
    if holder.executable:
        told += f": {holder.executable}"
    return finding_about(
        held,
        code=CODE,
        title=f"{size(held.known_bytes)} held by pid {holder.pid}, whose executable was deleted",
        cause=(
            f"{words.process(holder)} holds {size(held.known_bytes)}, and its executable was deleted or"
            " replaced since it started. It may be a forgotten old version."
        ),
        pids=(holder.pid,),
        evidence=(told, *held.evidence),
        remedies=remedies.ordered(
            (
                *remedies.look((holder,), "Check what it is, and whether a newer copy is running."),
                *remedies.end(ledger.host, everyone(held), certain=held.certain),
            )
        ),
        severity="warning",
    )

"""VR202 Cannot be ended now: the holder waits inside the kernel, or is already exiting.

What it detects
---------------
A process that keeps GPU memory is in uninterruptible sleep (state D), or has begun to exit and
is not through yet.

Why it happens
--------------
State D is normal for moments, while a disk or the driver answers. It lasts when the thing waited
for never comes: a dead network file system, or a driver in trouble. A process that exits gives
its memory back when the driver has torn its files down, which takes longer the more it held.

How to confirm
--------------
Look twice; where it waits is in its kernel stack:

    ps -o pid,stat,wchan:32,args -p PID
    sudo cat /proc/PID/stack
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Wait and look again. No risk.
- Signals do nothing here, kill -9 included: it is noted, and takes effect when the wait ends.
- If it waits in the driver for minutes and the kernel log shows Xid lines, only a restart of the
  machine helps: everything on it ends.

Source
------
Measured on an H200, driver 580.159: a killed process with 4 GiB gave its memory back 110 ms after
the signal. Processes stuck in the driver are reported in open-gpu-kernel-modules #456 and #1333.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory, gather, is_stuck
from vram.ledger.processes import living_holder
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Holder, Ledger
from vram.units import size

CODE = "VR202"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for held in gather(ledger.gpus, _held_by_stuck):
        if held.holder is not None:
            yield _finding(ledger, held, held.holder)


def _held_by_stuck(entry: Entry) -> bool:
    holder = living_holder(entry)
    return holder is not None and is_stuck(holder)


def _finding(ledger: Ledger, held: HeldMemory, holder: Holder) -> Finding:
    doing = "is exiting" if holder.exiting else "waits inside the kernel"
    told = "has begun to exit" if holder.exiting else "is in state D"
    return Finding(
        code=CODE,
        title=f"{size(held.nbytes)} held by pid {holder.pid}, which {doing}",
        nbytes=held.nbytes,
        cause=(
            f"{words.process(holder)} {doing}; no signal reaches it now. Its"
            f" {size(held.nbytes)} come back when that is over."
        ),
        gpus=held.gpus,
        pids=(holder.pid,),
        evidence=words.evidence((f"pid {holder.pid} {told}",), held.evidence),
        remedies=_ways_out(holder, remedies.drivers(ledger, held.gpus)),
        severity="warning",
    )


def _ways_out(holder: Holder, drivers: set[str]) -> tuple[Remedy, ...]:
    stack = f"sudo cat /proc/{holder.pid}/stack"
    return (
        remedies.for_processes(
            [holder], step="wait", text="Wait a moment, then run it again.", command="vram why"
        ),
        remedies.for_processes(
            [holder], step="look", text="See where in the kernel it waits.", command=stack
        ),
        remedies.kernel_log(f"pid {holder.pid}", drivers, (holder.pid,)),
    )

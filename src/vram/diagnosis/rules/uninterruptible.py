"""VR202 Cannot be killed now: the holder waits in the kernel, or is already exiting.

What it detects
---------------
A process that holds GPU memory is in uninterruptible sleep (state D), or has begun to exit and
has not finished yet. One that SIGKILL was sent to, and that has not begun to exit, is VR209.

Why it happens
--------------
State D is normal for a moment, while a disk or the driver answers. It lasts if the answer never
comes: a dead network file system, or a driver fault. The memory of an exiting process is freed
when the driver has torn down its files, which takes longer the more memory it held.

How to confirm
--------------
Run it twice; the kernel stack shows where the process waits:

    ps -o pid,stat,wchan:32,args -p PID
    sudo cat /proc/PID/stack
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

Remedies and their risk
-----------------------
- Wait and run it again. No risk.
- Signals have no effect now, not even kill -9: they are delivered when the wait ends.
- If it waits in the driver for minutes and the kernel log shows Xid lines, only a restart of the
  machine helps: everything on it ends.

Source
------
Measured on an H200, driver 580.159: the memory of a killed process with 4 GiB was free 110 ms after
the signal. Processes stuck in the driver are reported in open-gpu-kernel-modules #456 and #1333.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import by_first_holder, find_holds
from vram.ledger.processes import ignores_kill, is_stuck
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.units import size

CODE = "VR202"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in find_holds(ledger):
        for holder, held in by_first_holder(hold, lambda each: is_stuck(each) and not ignores_kill(each)):
            yield _finding(ledger, held, holder)


def _finding(ledger: Ledger, held: Hold, holder: Holder) -> Finding:
    doing = "is exiting" if holder.exiting else "is waiting in the kernel"
    told = "has begun to exit" if holder.exiting else "is in state D"
    return finding_about(
        held,
        code=CODE,
        title=f"{size(held.known_bytes)} held by pid {holder.pid}, which {doing}",
        cause=(
            f"{words.process(holder)} {doing}; signals have no effect now. Its"
            f" {size(held.known_bytes)} is freed when it has exited."
            if holder.exiting
            else f"{words.process(holder)} {doing} (state D); signals have no effect until the wait ends."
            f" It holds {size(held.known_bytes)} meanwhile."
        ),
        pids=(holder.pid,),
        evidence=(f"pid {holder.pid} {told}{words.kernel_function(holder)}", *held.evidence),
        remedies=_remedies(holder, remedies.drivers(ledger, held.gpus)),
        severity="warning",
    )


def _remedies(holder: Holder, drivers: set[str]) -> tuple[Remedy, ...]:
    stack = f"sudo cat /proc/{holder.pid}/stack"
    return (
        remedies.for_processes(
            [holder], step="wait", text="Wait a moment, then run it again.", command="vram why"
        ),
        remedies.for_processes(
            [holder], step="look", text="Check where in the kernel it waits.", command=stack
        ),
        remedies.kernel_log(f"pid {holder.pid}", drivers, (holder.pid,)),
    )

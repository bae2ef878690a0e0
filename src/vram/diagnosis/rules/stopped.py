"""VR201 Stopped process: it runs nothing and holds all its memory.

What it detects
---------------
A process that holds GPU memory is stopped: by Ctrl-Z or SIGSTOP (state T), or by a debugger
(state t).

Why it happens
--------------
A stopped process keeps its files open, so it keeps its memory for as long as it stays stopped.
Usually it is a terminal job that was stopped with Ctrl-Z; sometimes a job scheduler suspended it,
or a debugger was left attached.

How to confirm
--------------
The state column shows T or t; TracerPid names the debugger:

    ps -o pid,stat,tty,args -p PID
    grep TracerPid /proc/PID/status

Remedies and their risk
-----------------------
- Resume it: `kill -CONT PID`, or `fg` in the shell that stopped it. It continues where it was and
  uses the GPU again. Resume jobs that a scheduler suspended through the scheduler.
- Detach the debugger: the process continues.
- Kill it with `vram kill PID`. A stopped process handles SIGTERM only after it is resumed, so vram
  sends SIGCONT too. Unsaved work is lost.

Source
------
Measured on an H200, driver 580.159: a process stopped by SIGSTOP held all its memory and stayed
in the process list.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import by_first_holder, everyone, find_holds
from vram.ledger.processes import is_stopped
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.model.observation import HostFacts
from vram.units import size

CODE = "VR201"


def judge(ledger: Ledger) -> Iterator[Finding]:
    # One that vram is parking just now must not be continued by anybody else.
    parked = {(each.pid, each.started_at) for each in ledger.parked}
    for hold in find_holds(ledger):
        for holder, held in by_first_holder(hold, is_stopped):
            if (holder.pid, holder.started_at) not in parked:
                yield _finding(ledger, held, holder)


def _finding(ledger: Ledger, held: Hold, holder: Holder) -> Finding:
    how = "by a debugger" if holder.state == "t" else "by a signal"
    return finding_about(
        held,
        code=CODE,
        title=f"{size(held.known_bytes)} held by stopped pid {holder.pid}",
        cause=(
            f"{words.process(holder)} was stopped {how}. It does no work but holds"
            f" {size(held.known_bytes)} for as long as it stays stopped."
        ),
        pids=(holder.pid,),
        evidence=(f"pid {holder.pid} is in state {holder.state}", *held.evidence),
        remedies=remedies.ordered(
            (
                _resume(ledger.host, holder),
                *remedies.end(ledger.host, everyone(held), certain=held.certain),
            )
        ),
        severity="warning",
    )


def _resume(host: HostFacts, holder: Holder) -> Remedy:
    if holder.state == "t":
        text = "Detach the debugger; the process then continues."
        command = f"grep TracerPid /proc/{holder.pid}/status"
        return remedies.for_processes([holder], step="look", text=text, command=command)
    return remedies.resume(host, holder)

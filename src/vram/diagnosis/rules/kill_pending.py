"""VR209 SIGKILL has no effect: it is pending, and the process is still in the kernel.

What it detects
---------------
SIGKILL was sent to a process that holds GPU memory, and it has not begun to exit: the signal is
still pending in /proc/PID/status. It sleeps in the kernel (state D) or runs there (state R).
The finding names the kernel's function where that can be read.

Why it happens
--------------
A process takes a signal when it leaves the kernel. One that waits there for an answer that never
comes takes none, not even SIGKILL. In the driver that is a GPU that does not finish: functions
such as `uvm_spin_loop`, which waits in a loop and is in state R. Elsewhere it is a dead network
file system, a FUSE server that does not answer, or a container that is paused (`__refrigerator`,
with cgroup v1).

How to confirm
--------------
A mask of pending signals has bit 9 (its third digit from the right is odd), again and again:

    grep -E 'State|SigPnd|ShdPnd' /proc/PID/status
    cat /proc/PID/wchan; sudo cat /proc/PID/stack
    sudo dmesg --ctime | grep -iE 'xid|nvrm'

A signal that was sent a moment ago is pending too: `vram watch` reports this finding when three
readings in a row show it.

Remedies and their risk
-----------------------
- Wait and run it again: a long wait may end. No risk. Another SIGKILL changes nothing.
- Where it waits for a file system, bring its server back; where it is paused, resume the container.
- Where it is in the driver for minutes, reset the GPU after all other processes on it have ended.
  The driver refuses a reset while the process has the GPU open: then only a restart of the
  machine ends it, and everything on the machine ends.

Source
------
Reported in vllm#25127 and unsloth#3331 (state R in `uvm_spin_loop`, called by
`uvm_api_map_external_allocation`; only a restart helped), in pytorch#185414 for state D. Seen with
a FUSE server that never answers: state D in `request_wait_answer`, SIGKILL in ShdPnd and SigPnd.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about
from vram.ledger.holds import by_first_holder, find_holds
from vram.ledger.processes import ignores_kill
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.units import size

CODE = "VR209"

# How functions of the drivers begin, and those that wait for something else than a GPU.
_IN_DRIVER = ("uvm_", "nv", "_nv", "os_", "rm_", "amdgpu", "kfd", "xe_", "i915")
_PAUSED = "__refrigerator"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in find_holds(ledger):
        for holder, held in by_first_holder(hold, ignores_kill):
            yield _finding(ledger, held, holder)


def _finding(ledger: Ledger, held: Hold, holder: Holder) -> Finding:
    where = words.kernel_function(holder)
    doing = f"waits in the kernel{where}" if holder.state == "D" else f"is still in the kernel{where}"
    return finding_about(
        held,
        code=CODE,
        title=f"{size(held.known_bytes)} held by pid {holder.pid}, which SIGKILL does not end",
        cause=(
            f"SIGKILL was sent to {words.process(holder)}, which {doing} (state {holder.state or '?'}) and"
            f" does not take it. It holds {size(held.known_bytes)} until it leaves the kernel."
        ),
        pids=(holder.pid,),
        evidence=(
            f"SIGKILL is pending for pid {holder.pid}, which is in state {holder.state or '?'}{where}",
            *held.evidence,
        ),
        remedies=_remedies(ledger, held, holder),
        severity="warning",
    )


def _remedies(ledger: Ledger, held: Hold, holder: Holder) -> tuple[Remedy, ...]:
    function = holder.waits_in
    drivers = remedies.drivers(ledger, held.gpus)
    wait = "Wait, then run it again. Another SIGKILL changes nothing."
    if function == _PAUSED:
        resume = "Resume its container: it is paused, and takes the signal when it runs again."
        return (remedies.for_processes([holder], step="resume", text=resume),)
    ways = [
        remedies.for_processes([holder], step="wait", text=wait, command="vram why"),
        remedies.for_processes(
            [holder],
            step="look",
            text="Check where in the kernel it is.",
            command=f"sudo cat /proc/{holder.pid}/stack",
        ),
    ]
    if function is None or function.startswith(_IN_DRIVER):
        ways += (
            remedies.kernel_log(f"pid {holder.pid}", drivers, (holder.pid,)),
            Remedy(
                step="drain",
                target=f"gpu {', '.join(map(str, held.gpus))}",
                text=(
                    f"If it stays for minutes, end all others on {words.gpus(held.gpus)} and reset"
                    f" {'it' if len(held.gpus) == 1 else 'them'}; where the driver refuses that, restart the"
                    " machine."
                ),
                harm="affects-others",
                pids=(holder.pid,),
            ),
        )
    return tuple(ways)

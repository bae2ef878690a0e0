"""VR101 Orphaned by fork: a forked child holds the memory of a process that is dead.

What it detects
---------------
The driver's process list charges a pid that no longer exists, and a living process holds the
driver's files that it inherited from that pid by fork.

Why it happens
--------------
GPU memory belongs to open files, not to processes. A fork copies the parent's descriptors, and
the memory is freed only when the last copy closes. If the parent dies first, the driver keeps
charging the parent's pid: nvidia-smi shows a pid that does not exist, or no process at all,
while the child, which may never have used the GPU, holds every byte and the context too.
Usual children: data-loader workers, job launchers, log shippers, anything started with the
"fork" method after CUDA was initialised.
AMD and Intel drivers do not list who opened a device file. If several processes share one and none
of them is the parent of another, the process that opened it is taken to be dead ("likely").
If several parents died, session, process group and parent pid show whose child is whose. If they
do not, each child holds the memory of one of the dead processes, but it is unknown which.

How to confirm
--------------
The charged pid is gone, and the child has the device files open:

    ps -p CHARGED_PID
    sudo ls -l /proc/CHILD_PID/fd | grep /dev/nvidia

Remedies and their risk
-----------------------
- Let the child finish, or make it close the inherited descriptors: the memory is freed at once,
  even though mappings remain. No risk.
- `vram free` terminates all children that are proven to hold it; the memory is freed when the
  last one exits. Nobody uses this memory. `vram kill PID` also terminates children that only
  probably hold it.
- To prevent it, start workers with "spawn" or "forkserver", or before CUDA is first used, and
  make workers exit with their parent (prctl PR_SET_PDEATHSIG, or a pipe that closes).
- Resetting the GPU does not help while the child is alive.

Source
------
Measured on an H200, driver 580.159: parent with 4 GiB killed, child asleep: 4 GiB and the
context stayed, charged to the dead parent with 4614 MiB; the child had its 23 descriptors.
Closing them in the child freed everything while its 30 mappings remained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import HeldMemory
from vram.diagnosis.leftover import leftover_findings
from vram.ledger.processes import living_holder
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, Ledger
from vram.units import size

CODE = "VR101"


def judge(ledger: Ledger) -> Iterator[Finding]:
    return leftover_findings(CODE, ledger, _orphaned, title=_title, cause=_cause, gentler=_gentler)


def _orphaned(entry: Entry) -> bool:
    return entry.kind == "orphaned" and entry.charged_state != "Z" and living_holder(entry) is not None


def _title(held: HeldMemory) -> str:
    holders = words.charged_to(held.living, certain=held.certain, one_of=held.one_of)
    return f"{size(held.nbytes)} of dead pid {held.charged_pid}, {holders}"


def _cause(held: HeldMemory) -> str:
    likely = "" if held.certain else "most likely "
    who = f"{words.processes(held.living)} {likely}inherited"
    if held.one_of:
        who = f"one of {words.processes(held.living)} {likely}inherited"
    return (
        f"Pid {held.charged_pid} is dead, and {who} its open device files by fork."
        f" The driver frees the {size(held.nbytes)} when the last copy of them is closed."
    )


def _gentler(held: HeldMemory) -> Iterable[Remedy]:
    return (*_look(held), _prevent())


def _look(held: HeldMemory) -> Iterable[Remedy]:
    return remedies.look(held.living, "Check what it does; it may exit on its own.")


def _prevent() -> Remedy:
    text = "Prevent it: start workers with spawn or forkserver, or before CUDA is first used."
    return Remedy(step="change", target="program", text=text)

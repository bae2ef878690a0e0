"""VR206 In use: a living process is charged with this memory.

What it detects
---------------
The normal case: the driver charges a running process with GPU memory. The finding says who it is,
how long it has been running, and which container, job or service it belongs to.

Why it happens
--------------
Nothing is wrong. Note that a process is charged with its context (hundreds of MiB) even when it is
idle, and that frameworks keep freed memory in their own pools: from outside, cached memory looks
like used memory.

How to confirm
--------------
The driver's list and the process itself agree:

    nvidia-smi --query-compute-apps=pid,used_memory --format=csv
    ps -o pid,user,lstart,args -p PID

Remedies and their risk
-----------------------
- Ask the owner, or let it finish. No risk.
- Memory that another process was charged with until it ended (the history of `vram serve` knows
  that) was shared by CUDA IPC: it returns when this one closes its handle
  (cudaIpcCloseMemHandle; PyTorch: drop the tensor, then torch.cuda.ipc_collect()) or exits.
- `vram trim PID` makes a process release memory that its frameworks, or the driver's pools, only
  cache. Later allocations are slower. In the program itself: drop references, then call
  torch.cuda.empty_cache() or its equivalent (C++: cudaMemPoolTrimTo).
- `vram park PID` moves its GPU memory to host memory and pauses it until `vram unpark`. Only
  NVIDIA's driver can do that.
- Kill it with `vram kill PID`: unsaved work is lost. If children hold its files too, all of them
  must exit (VR102).

Source
------
Measured on an H200, driver 580.159: a bare context is charged with 518.0 MiB; PyTorch kept
17,386 MiB after training and 1,032 after empty_cache; a killed process with 4 GiB was gone 110 ms
after the signal; when the exporter of 4 GiB was killed, the importer was charged with them (518 to
4614 MiB).
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import ONLY_THE_CONTEXT, finding_about, is_bare_context
from vram.ledger.holds import everyone, find_holds
from vram.ledger.processes import is_healthy
from vram.model.finding import Finding
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.units import size

CODE = "VR206"

_FEW = 3


def judge(ledger: Ledger) -> Iterator[Finding]:
    for hold in find_holds(ledger, empty=True):
        if hold.what == "process" and is_healthy(hold.holders[0]) and hold.state != "orphan":
            yield _finding(ledger, hold, hold.holders[0])


def _can_be_parked(ledger: Ledger, hold: Hold, holder: Holder) -> bool:
    """Under MIG and through MPS the driver cannot; where a GPU has no memory of its own, nothing is freed."""
    own = all(gpu.has_own_memory for gpu in ledger.gpus if gpu.index in hold.gpus)
    return own and "mps" not in holder.lists and all(entry.gpu_instance is None for entry in hold.entries)


def _taken_over(hold: Hold) -> str:
    """Whose memory it likely has, where the history knows; else nothing."""
    found = [each for entry in hold.entries for each in entry.taken_over]
    if not found:
        return ""
    pids = ", ".join(f"pid {each.pid}" for each in found[:_FEW])
    return (
        f" {size(sum(each.nbytes for each in found))} of it was charged to {pids} until that ended: likely"
        " shared by CUDA IPC, it stays until this process closes it or exits."
    )


def _finding(ledger: Ledger, hold: Hold, holder: Holder) -> Finding:
    amount = "an unknown amount" if hold.nbytes is None else size(hold.nbytes)
    known = (words.belonging(holder.workload), words.age(holder))
    about = "".join(f", {word}" for word in known if word)
    bare = is_bare_context(hold.entries) and remedies.drivers(ledger, hold.gpus) == {"nvidia"}
    return finding_about(
        hold,
        code=CODE,
        title=f"{amount[:1].upper()}{amount[1:]} in use by pid {holder.pid}"
        + (": only its CUDA context" if bare else ""),
        cause=f"{words.process(holder)} uses {amount} of {words.gpus(hold.gpus)}{about}."
        + (f" That is {ONLY_THE_CONTEXT}." if bare else _taken_over(hold)),
        pids=(holder.pid,),
        remedies=remedies.ordered(
            (
                *remedies.trim_or_park(
                    ledger.host,
                    holder,
                    certain=hold.certain,
                    drivers=remedies.drivers(ledger, hold.gpus),
                    parks=_can_be_parked(ledger, hold, holder),
                    trims=not bare,
                ),
                *remedies.end(ledger.host, everyone(hold), certain=hold.certain),
            )
        ),
        severity="info",
    )

"""VR302 Hidden by permission: no permission to read the open files of the holder.

What it detects
---------------
Memory is in use that no readable process explains, and other users have processes whose open files
you cannot read. Or you have no permission to read a whole GPU, or its process lists.

Why it happens
--------------
Open files show who holds GPU memory, and Linux shows the open files of a process only to its own
user and to root. The driver's list helps while the charged process is alive; it does not include
forked children, exported handles and dma-bufs of other users.

How to confirm
--------------
Root sees the holders:

    sudo vram why

Remedies and their risk
-----------------------
- Run it with sudo. vram only reads. No risk.
- Ask the users that the finding names.

Source
------
The permission is described in proc_pid_fd(5): it needs the right to ptrace the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.diagnosis.held import finding_about, hidden_holds
from vram.model.finding import Finding
from vram.model.ledger import GpuLedger, Ledger
from vram.units import counted, size

CODE = "VR302"

_USERS_SHOWN = 5


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        if gpu.status == "denied":
            yield _denied(ledger, gpu)
    for gpu, holds in hidden_holds(ledger, "permission"):
        nbytes = size(sum(hold.known_bytes for hold in holds))
        yield finding_about(
            *holds,
            code=CODE,
            title=f"{nbytes} of GPU {gpu.index} held by processes you have no permission to read",
            cause=f"{nbytes} of GPU {gpu.index} is likely held by another user's process. {_unread(ledger)}",
            remedies=(remedies.see_more(ledger.host),),
            severity="warning",
        )


def _denied(ledger: Ledger, gpu: GpuLedger) -> Finding:
    title = f"No permission to read GPU {gpu.index}"
    cause = "The driver refuses to report on this GPU to this user, or its device file cannot be opened."
    if gpu.instances:
        # Under MIG that is how it is meant to be: an instance is all that its users are to see.
        title = f"No permission to read GPU {gpu.index} as a whole, only its MIG instances"
        cause = (
            "MIG divides the GPU, and the driver reports on the whole GPU only to root. The instances visible"
            " from here are accounted for; the rest of the GPU is unknown."
        )
    elif gpu.total_bytes is not None:
        title = f"No permission to read the process lists of GPU {gpu.index}"
        cause = "The driver reports to this user how much of the GPU is in use, but not by whom."
    return Finding(
        code=CODE,
        title=title,
        nbytes=None,
        cause=cause,
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message and not gpu.instances else ()),
        remedies=(remedies.see_more(ledger.host),),
        severity="info" if gpu.instances else "problem",
    )


def _unread(ledger: Ledger) -> str:
    count = ledger.unreadable_processes
    if not count:
        return "You have no permission to read other users' open files."
    users = [words.shown(user) for user in ledger.unreadable_users[:_USERS_SHOWN]]
    if len(ledger.unreadable_users) > _USERS_SHOWN:
        users.append("others")
    whose = f" of {', '.join(users)}" if users else ""
    return f"You have no permission to read the open files of {counted(count, 'process')}{whose}."

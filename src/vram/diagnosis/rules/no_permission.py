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
from vram.model.finding import Finding
from vram.model.ledger import Entry, GpuLedger, Ledger, known_bytes
from vram.units import size

CODE = "VR302"

_USERS_SHOWN = 5


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        if gpu.status == "denied":
            yield _denied(ledger, gpu)
        hidden = [entry for entry in gpu.entries if entry.nbytes and _is_unreadable(ledger, entry)]
        if hidden:
            yield _finding(ledger, gpu.index, hidden)


def _is_unreadable(ledger: Ledger, entry: Entry) -> bool:
    if entry.kind != "hidden":
        return False
    if entry.hidden_by is None:
        return ledger.host.initial_pid_namespace
    return entry.hidden_by == "permission"


def _denied(ledger: Ledger, gpu: GpuLedger) -> Finding:
    if gpu.instances:
        return _withheld(ledger, gpu)
    if gpu.total_bytes is not None:
        return _unlisted(ledger, gpu)
    return Finding(
        code=CODE,
        title=f"No permission to read GPU {gpu.index}",
        nbytes=None,
        cause="The driver refuses to report on this GPU to this user, or its device file cannot be opened.",
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message else ()),
        remedies=(remedies.see_more(ledger.host),),
        severity="problem",
    )


def _unlisted(ledger: Ledger, gpu: GpuLedger) -> Finding:
    return Finding(
        code=CODE,
        title=f"No permission to read the process lists of GPU {gpu.index}",
        nbytes=None,
        cause="The driver reports to this user how much of the GPU is in use, but not by whom.",
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message else ()),
        remedies=(remedies.see_more(ledger.host),),
        severity="problem",
    )


def _withheld(ledger: Ledger, gpu: GpuLedger) -> Finding:
    """Under MIG that is how it is meant to be: an instance is all that its users are to see."""
    return Finding(
        code=CODE,
        title=f"No permission to read GPU {gpu.index} as a whole, only its MIG instances",
        nbytes=None,
        cause=(
            "MIG divides the GPU, and the driver reports on the whole GPU only to root. The instances visible"
            " from here are accounted for; the rest of the GPU is unknown."
        ),
        gpus=(gpu.index,),
        remedies=(remedies.see_more(ledger.host),),
        severity="info",
    )


def _finding(ledger: Ledger, gpu: int, hidden: list[Entry]) -> Finding:
    nbytes = known_bytes(hidden)
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu} held by processes you have no permission to read",
        nbytes=nbytes,
        cause=f"{size(nbytes)} of GPU {gpu} is held by another user's process. {_unread(ledger)}",
        gpus=(gpu,),
        evidence=words.evidence(line for entry in hidden for line in entry.evidence),
        remedies=(remedies.see_more(ledger.host),),
        severity="warning",
    )


def _unread(ledger: Ledger) -> str:
    count = ledger.unreadable_processes
    if not count:
        return "You have no permission to read other users' open files."
    users = [words.shown(user) for user in ledger.unreadable_users[:_USERS_SHOWN]]
    if len(ledger.unreadable_users) > _USERS_SHOWN:
        users.append("others")
    whose = f" of {', '.join(users)}" if users else ""
    processes = f"{count} process{'es' if count != 1 else ''}"
    return f"You have no permission to read the open files of {processes}{whose}."

"""VR302 Hidden by permission: the holder's files may not be read.

What it detects
---------------
Memory is in use that no readable process explains, and there are processes of other users whose
open files we may not read. Or a whole GPU, or its process lists, may not be read by this user.

Why it happens
--------------
Who keeps GPU memory is told by open files, and Linux shows a process's open files only to its own
user and to root. The driver's list helps while the charged process lives; it says nothing of
forked children, exported handles and dma-bufs of other users.

How to confirm
--------------
The same question with full rights names them:

    sudo vram why

Remedies and their risk
-----------------------
- Look with sudo. vram only reads. No risk.
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
        title=f"GPU {gpu.index} may not be read",
        nbytes=None,
        cause="The driver does not answer this user about the GPU, or its device file may not be opened.",
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message else ()),
        remedies=(remedies.see_more(ledger.host),),
        severity="problem",
    )


def _unlisted(ledger: Ledger, gpu: GpuLedger) -> Finding:
    return Finding(
        code=CODE,
        title=f"The process lists of GPU {gpu.index} may not be read",
        nbytes=None,
        cause="The driver tells this user how much of the GPU is in use, and does not tell by whom.",
        gpus=(gpu.index,),
        evidence=words.evidence((gpu.message,) if gpu.message else ()),
        remedies=(remedies.see_more(ledger.host),),
        severity="problem",
    )


def _withheld(ledger: Ledger, gpu: GpuLedger) -> Finding:
    """Under MIG that is how it is meant to be: an instance is all that its users are to see."""
    return Finding(
        code=CODE,
        title=f"GPU {gpu.index} as a whole may not be read, its MIG instances may",
        nbytes=None,
        cause=(
            "MIG divides the GPU, and the driver tells the whole of it to the privileged only. The instances"
            " that can be seen from here are accounted for; what else the GPU holds cannot be told."
        ),
        gpus=(gpu.index,),
        remedies=(remedies.see_more(ledger.host),),
        severity="info",
    )


def _finding(ledger: Ledger, gpu: int, hidden: list[Entry]) -> Finding:
    nbytes = known_bytes(hidden)
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} held by processes that may not be read",
        nbytes=nbytes,
        cause=f"{size(nbytes)} of GPU {gpu} are kept by someone else. {_unread(ledger)}",
        gpus=(gpu,),
        evidence=words.evidence(line for entry in hidden for line in entry.evidence),
        remedies=(remedies.see_more(ledger.host),),
        severity="warning",
    )


def _unread(ledger: Ledger) -> str:
    count = ledger.unreadable_processes
    if not count:
        return "The open files of other users may not be read."
    users = [words.shown(user) for user in ledger.unreadable_users[:_USERS_SHOWN]]
    if len(ledger.unreadable_users) > _USERS_SHOWN:
        users.append("others")
    whose = f" of {', '.join(users)}" if users else ""
    return f"The open files of {count} process{'es' if count != 1 else ''}{whose} may not be read."

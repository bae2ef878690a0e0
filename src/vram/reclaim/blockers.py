"""What keeps a GPU from being reset: everybody on it, and the command that removes each.

A GPU that does not answer is never free of blockers: who has its files open is known without the
driver, who reaches it by another way is not.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.model.plan import Blocker
from vram.protected import is_display, role
from vram.reclaim.accounts import Account, accounts, is_silent

# How the parts of the system let go of a GPU: each by its own means.
_BY_ITS_OWN_MEANS = {
    "nvidia-persistenced": "sudo systemctl stop nvidia-persistenced",
    "nv-fabricmanager": "sudo systemctl stop nvidia-fabricmanager",
    "nvidia-fabricmanager": "sudo systemctl stop nvidia-fabricmanager",
    "nv-hostengine": "sudo systemctl stop nvidia-dcgm",
    "dcgm-exporter": "sudo systemctl stop dcgm-exporter",
    "nvidia-cuda-mps-control": "echo quit | nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server": "echo quit | nvidia-cuda-mps-control",
}
_DISPLAY = "sudo systemctl isolate multi-user.target"


def blockers(ledger: Ledger, gpu: GpuLedger) -> tuple[Blocker, ...]:
    """Everybody and everything on *gpu*, the largest first."""
    found = [_somebody(each, gpu) for each in accounts(ledger).values() if gpu.index in each.gpus]
    sized = sorted((*found, *_nobody(gpu)), key=lambda each: -(each.nbytes or 0))
    return (*_silence(gpu), *sized)


def _silence(gpu: GpuLedger) -> Iterator[Blocker]:
    if is_silent(gpu):
        why = "the GPU does not answer: who uses it cannot be told"
        yield Blocker(pid=None, name=None, user=None, nbytes=None, why=why)


def _somebody(account: Account, gpu: GpuLedger) -> Blocker:
    holder, working = account.holder, bool(account.own)
    nbytes = known_bytes((*account.own, *account.kept))
    part = role(holder.pid, holder)
    why = f"it is {part}" if part else ("it uses the GPU" if working else "it has the GPU's files open")
    return Blocker(
        pid=holder.pid,
        name=holder.command,
        user=holder.user,
        nbytes=None if is_silent(gpu) else nbytes,
        why=why,
        command=_removal(holder, part),
    )


def _removal(holder: Holder, part: str | None) -> str:
    if part is None:
        return f"vram kill {holder.pid}"
    if is_display(holder):
        return _DISPLAY
    name = (holder.executable or "").removesuffix(" (deleted)").rpartition("/")[2]
    return _BY_ITS_OWN_MEANS.get(name, "")


def _nobody(gpu: GpuLedger) -> Iterator[Blocker]:
    for entry in gpu.entries:
        if _is_unnamed(entry):
            why = {
                "hidden": "a process that cannot be seen from here holds it",
                "orphaned": "the driver charges it to a process that is gone",
            }.get(entry.kind, "nobody could be named for it")
            if entry.hidden_by == "end":
                why = "a process held it that ended while it was looked at: look again"
            command = "sudo vram why" if entry.hidden_by == "permission" else ""
            yield Blocker(pid=None, name=None, user=None, nbytes=entry.nbytes, why=why, command=command)


def _is_unnamed(entry: Entry) -> bool:
    # What contexts cost beyond their charge goes with the contexts.
    if not entry.kind_facts.held or entry.nbytes == 0:
        return False
    return entry.holder is None or not entry.holder.alive

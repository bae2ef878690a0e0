"""Leftovers: memory of dead owners that somebody else still holds. Ending its holders harms nobody's work."""

from __future__ import annotations

from collections.abc import Collection

from vram.diagnosis.health import is_healthy, is_stopped, is_stuck
from vram.diagnosis.holdings import in_use, living_holders
from vram.diagnosis.remedies import SUDO_VRAM
from vram.model.ledger import Entry, Ledger
from vram.model.observation import HostFacts
from vram.protected import role

ORPHANED, EXPORTED, DMABUF, ZOMBIE = "VR101", "VR103", "VR104", "VR203"
CODES = (ORPHANED, EXPORTED, DMABUF, ZOMBIE)
MOST_PIDS = 16


def code_of(entry: Entry) -> str | None:
    """The finding that calls *entry* a leftover; None where it is none."""
    if entry.kind == "exported":
        return DMABUF if entry.medium == "dmabuf" else EXPORTED
    if entry.kind == "orphaned" and living_holders(entry):
        return ZOMBIE if entry.charged_state == "Z" else ORPHANED
    return None


def working(ledger: Ledger) -> frozenset[int]:
    """Healthy processes that are charged with GPU memory of their own."""
    return frozenset(
        entry.holder.pid
        for gpu in ledger.gpus
        for entry in gpu.accounted
        if in_use(entry) and entry.holder is not None and is_healthy(entry.holder)
    )


def doubt(entry: Entry, works: Collection[int], host: HostFacts) -> str | None:
    """Why the holders of a leftover are not ended unless they are named; None where they may be.

    Only a fork gives a context's files to a process; a handle or a dma-buf anybody can hand to a service
    that takes descriptors. So root ends other users' processes for those only by name.
    """
    people = living_holders(entry)
    handed = [each for each in people if each.user != host.user] if entry.kind == "exported" else []
    if handed and host.uid == 0:
        return f"pid {handed[0].pid} of {handed[0].user or 'another user'} may have been handed it by anybody"
    for holder in people:
        if is_stuck(holder):
            return f"pid {holder.pid} waits inside the kernel or is exiting: no signal reaches it now"
        if part := role(holder.pid, holder):
            return f"pid {holder.pid} is {part}"
        if is_stopped(holder):
            by = "a debugger" if holder.state == "t" else "a signal (Ctrl-Z)"
            return f"pid {holder.pid} is stopped by {by}"
        if holder.pid in works:
            return f"pid {holder.pid} also works with GPU memory of its own"
    if entry.confidence != "fact":
        who = f"pid {people[0].pid} is" if len(people) == 1 else f"{len(people)} processes are"
        return f"{who} only likely to hold it"
    return None


def way_back(ledger: Ledger) -> str | None:
    """The one command that gives leftovers back here; None where there are none, or none would help."""
    works, host = working(ledger), ledger.host
    entries = [entry for gpu in ledger.gpus for entry in gpu.accounted if code_of(entry)]
    certain = [entry for entry in entries if doubt(entry, works, host) is None]
    if any(
        host.uid == 0 or all(each.user == host.user for each in living_holders(entry)) for entry in certain
    ):
        return "vram free"
    pids = dict.fromkeys(str(holder.pid) for entry in certain or entries for holder in living_holders(entry))
    if not pids or len(pids) > MOST_PIDS:
        return None
    ours = host.uid == 0 or all(each.user == host.user for entry in entries for each in living_holders(entry))
    stopped = any(is_stopped(each) or is_stuck(each) for entry in entries for each in living_holders(entry))
    return None if stopped and not certain else f"{'vram' if ours else SUDO_VRAM} kill {' '.join(pids)}"

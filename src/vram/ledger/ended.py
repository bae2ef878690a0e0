"""Charges of processes that ended while the host was read: they worked, and left nothing behind.

The driver's list, the open files and the processes are read one after the other. A process that was
alive when it was listed and is gone when it is looked at had its memory then; that is no memory of
a dead process, unless somebody living is seen to keep its files.
"""

from __future__ import annotations

from collections.abc import Sequence

from vram.ledger.families import keepers
from vram.ledger.holders import departed
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry, Note
from vram.units import counted, size


def set_apart(seen: Sightings) -> None:
    """Move the charges of processes that ended meanwhile from every GPU's charges to its ``ended``."""
    for gpu in seen.gpus.values():
        kept = None
        charges = []
        for charge in gpu.charges:
            if _has_ended(seen, charge):
                kept = kept or _Kept(seen, gpu)
                if not kept.by_somebody(charge.process.pid):
                    gpu.ended.append(charge)
                    continue
            charges.append(charge)
        gpu.charges = charges


def ended_entries(gpu: GpuSighting) -> list[Entry]:
    """Entries for what they had when the list was read."""
    return [_entry(charge) for charge in gpu.ended if charge.nbytes]


def note(ended: Sequence[Charge]) -> tuple[Note, ...]:
    if not ended:
        return ()
    text = (
        f"{counted(len(ended), 'process')} ended while the GPU was read: run it again for what is there now"
    )
    return (Note("ended-meanwhile", text),)


def _has_ended(seen: Sightings, charge: Charge) -> bool:
    if charge.ended:
        return True
    started_at = charge.process.started_at
    if started_at is None or seen.lists_other_pids:
        return False
    known = seen.processes.get(charge.process.pid)
    if known is None or known[0].started_at != started_at:
        return True
    # Who was exiting when it was listed may be stuck there; who began since is merely on its way.
    return known[1].is_dead or (known[1].exiting and not charge.exiting)


class _Kept:
    """What those keep who have the GPU open and are not charged: files by their descriptions, or as children.

    Merely to have the GPU open proves nothing here: who came after the list was read is on it as little.
    """

    def __init__(self, seen: Sightings, gpu: GpuSighting) -> None:
        minor = gpu.facts.minor if gpu.facts else None
        self._opened = seen.opened(minor)
        self._descriptions: set[int] = set()
        self._related: set[int | None] = set()
        self._related_unnumbered: set[int | None] = set()
        for pid in keepers(seen, minor, gpu.listed):
            facts = seen.processes[pid][1]
            related = (facts.parent, facts.group, facts.session)
            self._related.update(related)
            self._descriptions.update(self._opened[pid].descriptions)
            if not self._opened[pid].descriptions:
                self._related_unnumbered.update(related)

    def by_somebody(self, pid: int) -> bool:
        """Whether one of them has the files of *pid*: seen so, or, where they were not seen, as its child."""
        own = self._opened[pid].descriptions if pid in self._opened else ()
        if own:
            return pid in self._related_unnumbered or not self._descriptions.isdisjoint(own)
        return pid in self._related


def _entry(charge: Charge) -> Entry:
    pid, nbytes = charge.process.pid, charge.nbytes or 0
    return Entry(
        kind="hidden",
        nbytes=nbytes,
        holder=departed(pid, charge.lists),
        charged_pid=pid,
        hidden_by="end",
        evidence=(
            f"the driver listed pid {pid} with {size(nbytes)}",
            "it ended while it was looked at, and nobody is seen to keep its files",
        ),
        confidence="likely",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )

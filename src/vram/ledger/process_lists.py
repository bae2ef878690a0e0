"""The driver's process lists, made fit to build on: each process once, not endlessly many.

Processes that ended while the host was read are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from vram.ledger.file_holders import possible_holders
from vram.ledger.indexed_survey import Charge, GpuObservations, IndexedSurvey, departed
from vram.model.ledger import Entry, Note
from vram.units import counted, size

# Far more than have contexts on any GPU: each takes half a GiB of it.
MAX_CHARGES = 1 << 16


def merge_repeated(gpu: GpuObservations) -> None:
    """Merge what the lists say twice of a process, and set the smallest of too many charges apart.

    Two figures of one process count the same memory: the larger one counts, as where two lists name it.
    """
    merged: dict[object, Charge] = {}
    for charge in gpu.charges:
        key = (charge.process, charge.gpu_instance, charge.compute_instance, charge.ended, charge.exiting)
        known = merged.setdefault(key, charge)
        if known is not charge:
            merged[key] = _merge(known, charge)
            gpu.repeated[charge.gpu_instance] = gpu.repeated.get(charge.gpu_instance, 0) + 1
    gpu.charges = list(merged.values())
    if len(gpu.charges) > MAX_CHARGES:
        by_size = sorted(gpu.charges, key=lambda charge: -(charge.nbytes or 0))
        gpu.unnamed = by_size[MAX_CHARGES:]
        unnamed = set(map(id, gpu.unnamed))
        gpu.charges = [charge for charge in gpu.charges if id(charge) not in unnamed]


def _merge(one: Charge, other: Charge) -> Charge:
    known = [each.nbytes for each in (one, other) if each.nbytes is not None]
    lists = tuple(dict.fromkeys((*one.lists, *other.lists)))
    return replace(one, nbytes=max(known, default=None), lists=lists)


def unnamed_entries(gpu: GpuObservations) -> list[Entry]:
    """One entry for all charges that were set apart, on each instance that they are on."""
    groups: dict[int | None, list[Charge]] = {}
    for charge in gpu.unnamed:
        groups.setdefault(charge.gpu_instance, []).append(charge)
    return [_unnamed_entry(instance, charges) for instance, charges in groups.items()]


def _unnamed_entry(instance: int | None, charges: list[Charge]) -> Entry:
    nbytes = sum(charge.nbytes or 0 for charge in charges)
    reported = f"the driver's lists name {counted(len(charges), 'more process')} with {size(nbytes)} together"
    evidence = (reported, f"only the {MAX_CHARGES:,} largest are listed one by one")
    return Entry(
        kind="process",
        nbytes=nbytes,
        sharing="together",
        evidence=evidence,
        confidence="unknown",
        gpu_instance=instance,
    )


def list_notes(gpu: GpuObservations) -> Iterator[Note]:
    """What was done to the lists."""
    if repeated := sum(gpu.repeated.values()):
        text = (
            f"the driver's lists name some processes more than once ({repeated:,} times): each is counted"
            " once, with its largest figure"
        )
        yield Note("listed-again", text)
    if gpu.unnamed:
        text = (
            f"the driver's lists name {len(gpu.unnamed):,} more processes than the {MAX_CHARGES:,} listed"
            " here: they share one line"
        )
        yield Note("too-many-listed", text)


# ---- processes that ended while the host was read: they worked, and left nothing behind ----
#
# The driver's list, the open files and the processes are read one after the other. A process that was
# alive when it was listed and is gone when /proc is read had its memory then; that is no memory of a
# dead process, unless a living process is seen to have its files.


def set_ended_apart(survey: IndexedSurvey) -> None:
    """Move the charges of processes that ended meanwhile from every GPU's charges to its ``ended``."""
    for gpu in survey.gpus.values():
        kept = None
        charges = []
        for charge in gpu.charges:
            if _has_ended(survey, charge):
                kept = kept or _InheritedFiles(survey, gpu)
                if not kept.by_somebody(charge.process.pid):
                    gpu.ended.append(charge)
                    continue
            charges.append(charge)
        gpu.charges = charges


def ended_entries(gpu: GpuObservations) -> list[Entry]:
    """Entries for what they had when the list was read."""
    return [_ended_entry(charge) for charge in gpu.ended if charge.nbytes]


def ended_notes(ended: Sequence[Charge]) -> tuple[Note, ...]:
    if not ended:
        return ()
    text = f"{counted(len(ended), 'process')} exited while the GPU was read: run it again for current figures"
    return (Note("ended-meanwhile", text),)


def _has_ended(survey: IndexedSurvey, charge: Charge) -> bool:
    if charge.ended:
        return True
    started_at = charge.process.started_at
    if started_at is None or survey.lists_other_pids:
        return False
    known = survey.processes.get(charge.process.pid)
    if known is None or known[0].started_at != started_at:
        return True
    # Who was exiting when it was listed may be stuck there; who began since is merely on its way.
    return known[1].is_dead or (known[1].exiting and not charge.exiting)


class _InheritedFiles:
    """The files of those that have the GPU open and are not charged: by descriptions, or as children.

    Merely to have the GPU open proves nothing here: who came after the list was read is on it as little.
    """

    def __init__(self, survey: IndexedSurvey, gpu: GpuObservations) -> None:
        minor = gpu.facts.minor if gpu.facts else None
        self._opened = survey.opened(minor)
        self._descriptions: set[int] = set()
        self._related: set[int | None] = set()
        self._related_unnumbered: set[int | None] = set()
        for pid in possible_holders(survey, minor, gpu.listed):
            facts = survey.processes[pid][1]
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


def _ended_entry(charge: Charge) -> Entry:
    pid, nbytes = charge.process.pid, charge.nbytes or 0
    return Entry(
        kind="hidden",
        nbytes=nbytes,
        holder=departed(pid, charge.lists),
        charged_pid=pid,
        hidden_by="end",
        evidence=(
            f"the driver listed pid {pid} with {size(nbytes)}",
            "it exited during the read, and no process is known to hold its files",
        ),
        confidence="likely",
        gpu_instance=charge.gpu_instance,
        compute_instance=charge.compute_instance,
    )

"""The driver's process lists before anything is built on them: each process once, and not endlessly many."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from vram.ledger.sightings import Charge, GpuSighting
from vram.model.ledger import Entry, Note
from vram.units import counted, size

# Far more than have contexts on any GPU: each takes half a GiB of it.
MOST_CHARGES = 1 << 16


def tidy(gpu: GpuSighting) -> None:
    """Merge what the lists say twice of a process, and set the smallest of too many charges apart.

    Two figures of one process count the same memory: the larger one stands, as where two lists name it.
    """
    merged: dict[object, Charge] = {}
    for charge in gpu.charges:
        key = (charge.process, charge.gpu_instance, charge.compute_instance, charge.ended, charge.exiting)
        known = merged.setdefault(key, charge)
        if known is not charge:
            merged[key] = _merged(known, charge)
            gpu.repeated[charge.gpu_instance] = gpu.repeated.get(charge.gpu_instance, 0) + 1
    gpu.charges = list(merged.values())
    if len(gpu.charges) > MOST_CHARGES:
        by_size = sorted(gpu.charges, key=lambda charge: -(charge.nbytes or 0))
        gpu.unnamed = by_size[MOST_CHARGES:]
        unnamed = set(map(id, gpu.unnamed))
        gpu.charges = [charge for charge in gpu.charges if id(charge) not in unnamed]


def _merged(one: Charge, other: Charge) -> Charge:
    known = [each.nbytes for each in (one, other) if each.nbytes is not None]
    lists = tuple(dict.fromkeys((*one.lists, *other.lists)))
    return replace(one, nbytes=max(known, default=None), lists=lists)


def unnamed_entries(gpu: GpuSighting) -> list[Entry]:
    """One entry for all charges that were set apart, on each instance that they are on."""
    groups: dict[int | None, list[Charge]] = {}
    for charge in gpu.unnamed:
        groups.setdefault(charge.gpu_instance, []).append(charge)
    return [_together(instance, charges) for instance, charges in groups.items()]


def _together(instance: int | None, charges: list[Charge]) -> Entry:
    nbytes = sum(charge.nbytes or 0 for charge in charges)
    told = f"the driver's lists name {counted(len(charges), 'more process')} with {size(nbytes)} together"
    evidence = (told, f"of so many only the {MOST_CHARGES:,} largest are named one by one")
    return Entry(
        kind="process",
        nbytes=nbytes,
        sharing="together",
        evidence=evidence,
        confidence="unknown",
        gpu_instance=instance,
    )


def notes(gpu: GpuSighting) -> tuple[Note, ...]:
    """What was done to the lists."""
    return tuple(_notes(sum(gpu.repeated.values()), gpu.unnamed))


def _notes(repeated: int, unnamed: list[Charge]) -> Iterable[Note]:
    if repeated:
        text = (
            f"the driver's lists name processes again that they have named, {repeated:,} times: each counts"
            " once, with its largest figure"
        )
        yield Note("listed-again", text)
    if unnamed:
        text = (
            f"the driver's lists name {len(unnamed):,} more processes than the {MOST_CHARGES:,} that are"
            " named here: the others share one line"
        )
        yield Note("too-many-listed", text)

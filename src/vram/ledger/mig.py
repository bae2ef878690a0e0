"""A GPU that MIG divides: which instances there are, and what of the GPU lies in none of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from vram.ledger.indexed_survey import Charge, GpuObservations, IndexedSurvey
from vram.ledger.remainder import fit, split
from vram.model.gpu import MemoryFacts, MigFacts
from vram.model.ledger import Entry, Instance, MigDevice, Note, known_bytes
from vram.units import size


class Part(Struct, frozen=True):
    """One GPU instance, its memory, and the MIG devices that share it."""

    number: int
    devices: tuple[MigFacts, ...]
    memory: MemoryFacts | None


def _is_divided(gpu: GpuObservations) -> bool:
    """Whether MIG is on, and its devices are known: then no program uses the GPU as a whole."""
    facts = gpu.facts if gpu.driver == "nvidia" else None
    return facts is not None and bool(facts.mig_enabled) and facts.mig_devices is not None


def parts(gpu: GpuObservations) -> tuple[Part, ...]:
    """The GPU instances in the order of their devices.

    Every device of an instance reports the same memory, read a moment apart: the last reading counts.
    """
    found: dict[int, list[MigFacts]] = {}
    for device in sorted(gpu.mig, key=lambda each: each.index):
        found.setdefault(device.gpu_instance, []).append(device)
    return tuple(Part(number, tuple(devices), _memory(devices)) for number, devices in found.items())


def _memory(devices: Sequence[MigFacts]) -> MemoryFacts | None:
    return next((each.memory for each in reversed(devices) if each.memory is not None), None)


def _beyond(gpu: GpuObservations, found: Sequence[Part]) -> int | None:
    """What the instances have, where that is more than their GPU has: MIG changed between the readings."""
    inside = sum(part.memory.total for part in found if part.memory)
    return inside if gpu.memory is not None and inside > gpu.memory.total else None


def instance_observations(
    gpu: GpuObservations, found: Sequence[Part]
) -> Iterator[tuple[Part, GpuObservations]]:
    """What was seen of each instance, as if it were a GPU of its own."""
    charges, ended, unnamed = (_by_instance(each) for each in (gpu.charges, gpu.ended, gpu.unnamed))
    for part in found:
        yield (
            part,
            GpuObservations(
                gpu.index,
                gpu.facts,
                part.memory,
                charges=charges.get(part.number, []),
                ended=ended.get(part.number, []),
                unnamed=unnamed.get(part.number, []),
                repeated={part.number: gpu.repeated.get(part.number, 0)},
                lists=gpu.lists,
            ),
        )


def _by_instance(charges: Iterable[Charge]) -> dict[int | None, list[Charge]]:
    found: dict[int | None, list[Charge]] = {}
    for charge in charges:
        found.setdefault(charge.gpu_instance, []).append(charge)
    return found


def outside(gpu: GpuObservations, found: Sequence[Part], claims: Sequence[Entry]) -> list[Entry]:
    """Entries for what lies in no instance; with the instances' they sum to the GPU's total.

    *claims* are charges that name no instance we know.
    """
    if gpu.memory is None:
        return list(claims)
    inside = [split(part.memory) for part in found if part.memory]
    room = gpu.memory.total - sum(map(sum, inside))
    _, whole_reserved, whole_used = split(gpu.memory)
    reserved = min(room, max(0, whole_reserved - sum(each[1] for each in inside)))
    used = min(room - reserved, max(0, whole_used - sum(each[2] for each in inside)))
    claimed = fit(claims, used)
    rest = used - known_bytes(claimed)
    unread = [part for part in found if part.memory is None]
    return [*claimed, *_frame(rest, reserved, room - reserved - used, unread)]


def _frame(rest: int, reserved: int, unassigned: int, unread: Sequence[Part]) -> list[Entry]:
    entries = [
        Entry(kind="overhead", nbytes=rest, evidence=(_DRIVERS_OWN,), confidence="likely"),
        Entry(kind="reserved", nbytes=reserved, evidence=("the driver's own figure",)),
        _unassigned(unassigned, unread),
    ]
    return [entry for entry in entries if entry.nbytes]


_DRIVERS_OWN = "in use on the GPU but in none of its instances; under MIG no program can run there"


def _unassigned(nbytes: int, unread: Sequence[Part]) -> Entry:
    if not unread:
        reason = "the GPU's memory minus its instances and the reserved part"
        return Entry(kind="unassigned", nbytes=nbytes, evidence=(reason,))
    numbers = ", ".join(str(part.number) for part in unread)
    reason = f"GPU instance {numbers} did not report its size: part of this may belong to it"
    return Entry(kind="unassigned", nbytes=nbytes, evidence=(reason,), confidence="unknown")


def instance(part: Part, notes: tuple[Note, ...]) -> Instance:
    """What the ledger says of an instance beside its entries."""
    return Instance(
        gpu_instance=part.number,
        devices=tuple(
            MigDevice(
                index=each.index, uuid=each.uuid, name=each.name, compute_instance=each.compute_instance
            )
            for each in part.devices
        ),
        total_bytes=part.memory.total if part.memory else None,
        memory=part.memory,
        message=None if part.memory else "the driver reports no memory figures for this instance",
        notes=notes,
    )


def note(gpu: GpuObservations, found: Sequence[Part]) -> tuple[Note, ...]:
    """What to say where the instances cannot be counted one by one."""
    inside = _beyond(gpu, found)
    if inside is None:
        return ()
    text = (
        f"the MIG instances add up to {size(inside)}, more than the GPU has: MIG was changed during the"
        " read, so the GPU is shown as a whole"
    )
    return (Note("mig-changed", text),)


def known(survey: IndexedSurvey) -> dict[int, tuple[Part, ...]]:
    """The instances of every divided GPU whose figures agree, by the GPU's number."""
    divided = {index: gpu for index, gpu in survey.gpus.items() if _is_divided(gpu)}
    found = {index: parts(gpu) for index, gpu in divided.items()}
    return {index: each for index, each in found.items() if _beyond(divided[index], each) is None}

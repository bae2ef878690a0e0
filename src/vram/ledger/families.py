"""Forked families: processes that hold a GPU's files without a line in the driver's list.

A fork inherits the driver's files, and memory lives as long as any copy of them. So the
keepers of a dead pid's memory are found among processes that have the GPU open and are
charged nothing themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.files import DeviceFile

# Descriptors on a GPU of a process that initialised CUDA and made no context (H200, driver 580.159).
_ONLY_INITIALISED = 4


class Family(Struct, frozen=True):
    """Processes that share open file descriptions on one GPU, by fork or by passing them."""

    pids: tuple[int, ...]
    descriptions: frozenset[int]


def keepers(seen: Sightings, minor: int | None, charged: Iterable[int]) -> list[int]:
    """Processes that could keep CUDA memory of the GPU and are not charged for any.

    A context shows as many descriptors on the GPU (20 on driver 580.159). A process that only
    looked for GPUs has 4. Who has no more than that, or far fewer than the best candidate,
    keeps no context.
    """
    counts = onlookers(seen, minor, charged)
    most = max(counts.values(), default=0)
    return [pid for pid, count in counts.items() if count > _ONLY_INITIALISED and count * 2 >= most]


def onlookers(seen: Sightings, minor: int | None, charged: Iterable[int]) -> dict[int, int]:
    """Processes that run CUDA on the GPU and are not charged for it, and how many descriptors each has.

    A monitoring tool has descriptors too, and maps none of them.
    """
    spoken_for = set(charged)
    counts = {
        pid: _descriptors(seen, pid, minor)
        for pid, facts in seen.files.items()
        if pid not in spoken_for and seen.alive(pid) and facts.mappings != 0
    }
    return {pid: count for pid, count in counts.items() if count}


def _descriptors(seen: Sightings, pid: int, minor: int | None) -> int:
    files = seen.files[pid].files
    return sum(1 for file in files if file.kind == "gpu" and (minor is None or file.minor == minor))


def openers(seen: Sightings, gpu: GpuSighting) -> list[int]:
    """Everybody alive who has the GPU's files open; where its number is unknown, files of no other GPU."""
    numbers = {each.index: each.facts.minor for each in seen.gpus.values() if each.facts}
    minor = numbers.pop(gpu.index, None)
    others = set(numbers.values())
    return sorted(
        pid
        for pid, facts in seen.files.items()
        if seen.alive(pid) and any(_is_of(file, minor, others) for file in facts.files)
    )


def _is_of(file: DeviceFile, minor: int | None, others: Collection[int | None]) -> bool:
    return file.kind == "gpu" and (file.minor not in others if minor is None else file.minor == minor)


def descriptions(seen: Sightings, pid: int, minor: int | None) -> frozenset[int]:
    """The open file descriptions of *pid* on one GPU, as far as the kernel told them apart."""
    files = seen.files[pid].files if pid in seen.files else ()
    return frozenset(
        file.description
        for file in files
        if file.kind == "gpu" and file.description is not None and (minor is None or file.minor == minor)
    )


def families(seen: Sightings, pids: Sequence[int], minor: int | None) -> list[Family]:
    """Group *pids* by the descriptions that they share; oldest pid first in each."""
    groups: list[tuple[set[int], set[int]]] = []
    for pid in pids:
        own = set(descriptions(seen, pid, minor))
        touching = [group for group in groups if group[1] & own]
        groups = [group for group in groups if group not in touching]
        members = {pid}.union(*(group[0] for group in touching))
        groups.append((members, own.union(*(group[1] for group in touching))))
    return [Family(tuple(sorted(members)), frozenset(shared)) for members, shared in groups]


def source_of(seen: Sightings, pid: int, minor: int | None, charged: Iterable[int]) -> int | None:
    """The living, charged process whose very files *pid* holds, if there is one."""
    own = descriptions(seen, pid, minor)
    for other in charged:
        theirs = descriptions(seen, other, minor)
        if own & theirs:
            return other
        # Where the kernel does not tell descriptions apart, a charged parent is the likely source.
        if not (own and theirs) and other in ancestors(seen, pid):
            return other
    return None


def ancestors(seen: Sightings, pid: int) -> list[int]:
    """The pids above *pid*, nearest first, as far as /proc told."""
    chain: list[int] = []
    while (known := seen.processes.get(pid)) and known[1].parent and known[1].parent not in chain:
        pid = known[1].parent
        chain.append(pid)
    return chain

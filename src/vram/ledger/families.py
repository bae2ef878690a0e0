"""Forked families: processes that hold a GPU's files without a line in the driver's list.

A fork inherits the driver's files, and memory lives as long as any copy of them. So the
keepers of a dead pid's memory are found among processes that have the GPU open and are
charged nothing themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain

from msgspec import Struct

from vram.ledger.ancestry import NOBODY
from vram.ledger.sightings import GpuSighting, Sightings

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
    return likely_keepers(onlookers(seen, minor, charged))


def likely_keepers(onlookers: Mapping[int, int]) -> list[int]:
    """Those *onlookers* that have enough descriptors for a context."""
    most = max(onlookers.values(), default=0)
    return [pid for pid, count in onlookers.items() if count > _ONLY_INITIALISED and count * 2 >= most]


def onlookers(seen: Sightings, minor: int | None, charged: Iterable[int]) -> dict[int, int]:
    """Processes that run CUDA on the GPU and are not charged for it, and how many descriptors each has.

    A monitoring tool has descriptors too, and maps none of them.
    """
    spoken_for = set(charged)
    return {
        pid: opened.descriptors
        for pid, opened in seen.opened(minor).items()
        if pid not in spoken_for and seen.alive(pid) and seen.files[pid].mappings != 0
    }


def openers(seen: Sightings, gpu: GpuSighting) -> list[int]:
    """Everybody alive who has the GPU's files open; where its number is unknown, files of no other GPU."""
    minor = gpu.facts.minor if gpu.facts else None
    found = seen.opened(minor) if minor is not None else _on_no_other(seen, gpu)
    return sorted(filter(seen.alive, found))


def _on_no_other(seen: Sightings, gpu: GpuSighting) -> Iterator[int]:
    others = {each.facts.minor for each in seen.gpus.values() if each.facts and each is not gpu}
    for pid, facts in seen.files.items():
        if any(file.kind == "gpu" and file.minor not in others for file in facts.files):
            yield pid


def families(seen: Sightings, pids: Sequence[int], minor: int | None) -> list[Family]:
    """Group *pids* by the descriptions that they share; oldest pid first in each."""
    opened = seen.opened(minor)
    told = [opened[pid].descriptions if pid in opened else () for pid in pids]
    return [
        Family(
            tuple(sorted({pids[at] for at in group})),
            frozenset(chain.from_iterable(told[at] for at in group)),
        )
        for group in joined(told)
    ]


def joined(descriptions: Sequence[Iterable[int]]) -> list[list[int]]:
    """Join the places of all sets that have a description in common, directly or through others.

    A group stands where its last member does.
    """
    last_with: dict[int, int] = {}
    head = list(range(len(descriptions)))

    def head_of(at: int) -> int:
        while head[at] != at:
            head[at] = at = head[head[at]]
        return at

    for at, own in enumerate(descriptions):
        for description in own:
            other = last_with.get(description)
            last_with[description] = at
            if other is not None:
                head[head_of(other)] = at
    groups: dict[int, list[int]] = {}
    for at in range(len(descriptions)):
        groups.setdefault(head_of(at), []).append(at)
    return [groups[at] for at in sorted(groups)]


def sources(
    seen: Sightings, pids: Sequence[int], minor: int | None, charged: Sequence[int]
) -> dict[int, int | None]:
    """For each of *pids* the living, charged process whose very files it holds, if there is one.

    Of several it is the one that the list names first.
    """
    opened = seen.opened(minor)
    ranks: dict[int, int] = {}
    unnumbered: dict[int, int] = {}
    first_with: dict[int, int] = {}
    for rank, other in enumerate(charged):
        theirs = opened[other].descriptions if other in opened else ()
        ranks.setdefault(other, rank)
        if not theirs:
            unnumbered.setdefault(other, rank)
        for description in theirs:
            first_with.setdefault(description, rank)
    # Where the kernel does not tell descriptions apart, a charged parent is the likely source.
    any_above = seen.ancestry.least_above(ranks)
    unnumbered_above = seen.ancestry.least_above(unnumbered)

    @cache
    def same_files(own: tuple[int, ...]) -> int:
        return min((first_with[each] for each in own if each in first_with), default=NOBODY)

    def source(pid: int) -> int | None:
        own = opened[pid].descriptions if pid in opened else ()
        rank = same_files(own)
        if own and unnumbered:
            rank = min(rank, unnumbered_above(pid))
        elif not own and ranks:
            rank = min(rank, any_above(pid))
        return charged[rank] if rank != NOBODY else None

    return {pid: source(pid) for pid in pids}

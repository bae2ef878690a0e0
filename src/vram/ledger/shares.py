"""Exported allocations and dma-bufs: memory that no process list names."""

from __future__ import annotations

from msgspec import Struct

from vram.ledger.holders import holder, holders
from vram.ledger.sightings import Share, Sightings, by_identity
from vram.model.ledger import Bystander, Entry
from vram.units import size

# A GPU, and its GPU instance where MIG divides it.
Place = tuple[int, int | None]


class Settled(Struct):
    """What exported memory adds to one place, and the room that is left after it."""

    room: int
    entries: list[Entry] = []
    bystanders: list[Bystander] = []


# The room is an estimate (it leaves out what contexts cost beyond their charge): an
# allocation may be short of room by this part of itself and still count as uncharged.
_SLACK = 16


def settle(seen: Sightings, rooms: dict[Place, int]) -> dict[Place, Settled]:
    """Place every exported allocation; *rooms* are bytes there that nobody is charged for.

    While its maker lives, an exported allocation is part of the maker's own charge, and
    there is no room for it: then its keeper is a bystander, who will keep it one day.
    """
    settled = {place: Settled(room=room) for place, room in rooms.items()}
    for shares in by_identity(share for share in seen.shares if _may_be_nvidias(share)):
        place, certain = _place_of(shares, settled)
        if place is None:
            continue
        if _fits(shares[0].nbytes, settled[place].room):
            entry = _entry(seen, shares, certain)
            settled[place].entries.append(entry)
            settled[place].room = max(0, settled[place].room - entry.nbytes)
        else:
            settled[place].bystanders += [_bystander(seen, share) for share in shares]
    return settled


def _may_be_nvidias(share: Share) -> bool:
    return share.exporter is None or share.exporter.startswith("nv")


def _place_of(shares: list[Share], settled: dict[Place, Settled]) -> tuple[Place | None, bool]:
    """Where an allocation lies: an import tells it; a dma-buf does not, so room decides."""
    told = next((share for share in shares if share.gpu is not None), None)
    possible = [place for place in settled if told is None or place[0] == told.gpu]
    if told is not None and told.gpu_instance is not None:
        possible = [place for place in possible if place[1] == told.gpu_instance]
    roomiest = max(possible, key=lambda place: settled[place].room, default=None)
    return roomiest, len(possible) == 1


def _fits(nbytes: int, room: int) -> bool:
    return nbytes - nbytes // _SLACK <= room


def _entry(seen: Sightings, shares: list[Share], certain: bool) -> Entry:
    pids = sorted({share.process.pid for share in shares})
    keeping = holders(seen, pids) or (holder(seen, shares[0].process),)
    evidence = [_statement(share) for share in shares]
    evidence.append("the driver's process lists charge these bytes to nobody")
    if not certain:
        evidence.append("a dma-buf does not say which GPU it is on; this one has room for it")
    return Entry(
        kind="exported",
        nbytes=shares[0].nbytes,
        holder=keeping[0],
        sharers=keeping[1:],
        evidence=tuple(evidence),
        confidence="fact" if certain else "likely",
        medium=shares[0].medium,
    )


def _statement(share: Share) -> str:
    if share.medium == "dmabuf":
        return f"descriptor {share.fd} of pid {share.process.pid} is a dma-buf of {size(share.nbytes)}"
    return (
        f"descriptor {share.fd} of pid {share.process.pid} is an exported allocation:"
        f" the driver imports a copy of it and maps {size(share.nbytes)}"
    )


def _bystander(seen: Sightings, share: Share) -> Bystander:
    return Bystander(holder=holder(seen, share.process), exported_bytes=share.nbytes)

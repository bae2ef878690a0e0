"""Exported allocations and dma-bufs: memory that no process list names."""

from __future__ import annotations

from msgspec import Struct

from vram.ledger.holders import holder, holders
from vram.ledger.sightings import Share, Sightings, by_identity
from vram.model.ledger import Bystander, Entry
from vram.units import size


class Settled(Struct):
    """What exported memory adds to one GPU, and the room that is left after it."""

    room: int
    entries: list[Entry] = []
    bystanders: list[Bystander] = []


# The room is an estimate (it leaves out what contexts cost beyond their charge): an
# allocation may be short of room by this part of itself and still count as uncharged.
_SLACK = 16


def settle(seen: Sightings, rooms: dict[int, int]) -> dict[int, Settled]:
    """Place every exported allocation on its GPU; *rooms* are bytes that nobody is charged for.

    While its maker lives, an exported allocation is part of the maker's own charge, and
    there is no room for it: then its keeper is a bystander, who will keep it one day.
    """
    settled = {gpu: Settled(room=room) for gpu, room in rooms.items()}
    for shares in by_identity(share for share in seen.shares if _may_be_nvidias(share)):
        gpu, certain = _gpu_of(shares, settled)
        if gpu is None:
            continue
        if _fits(shares[0].nbytes, settled[gpu].room):
            entry = _entry(seen, shares, certain)
            settled[gpu].entries.append(entry)
            settled[gpu].room = max(0, settled[gpu].room - entry.nbytes)
        else:
            settled[gpu].bystanders += [_bystander(seen, share) for share in shares]
    return settled


def _may_be_nvidias(share: Share) -> bool:
    return share.exporter is None or share.exporter.startswith("nv")


def _gpu_of(shares: list[Share], settled: dict[int, Settled]) -> tuple[int | None, bool]:
    """The GPU of an allocation: an import tells it; a dma-buf does not, so room decides."""
    told = next((share.gpu for share in shares if share.gpu is not None), None)
    if told is not None:
        return (told if told in settled else None), True
    roomiest = max(settled, key=lambda gpu: settled[gpu].room, default=None)
    return roomiest, len(settled) == 1


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

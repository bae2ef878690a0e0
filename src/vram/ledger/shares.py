"""Exported allocations and dma-bufs: memory that no process list names."""

from __future__ import annotations

from msgspec import Struct

from vram.ledger.families import ancestors
from vram.ledger.holders import holder, holders
from vram.ledger.sightings import Share, Sightings, by_identity
from vram.model.ledger import Bystander, Entry
from vram.model.process import ProcessRef
from vram.units import size

# A GPU, and its GPU instance where MIG divides it.
Place = tuple[int, int | None]

_PIDS_SHOWN = 4


class Settled(Struct, frozen=True):
    """What exported memory adds to one place."""

    entries: list[Entry]
    bystanders: list[Bystander]


class _Draft(Struct):
    """One place while allocations are given to it: those in its room, and those that have none."""

    room: int
    kept: list[tuple[list[Share], bool]] = []
    charged: list[list[Share]] = []


# The room is an estimate (it leaves out what contexts cost beyond their charge): an
# allocation may be short of room by this part of itself and still count as uncharged.
_SLACK = 16


def settle(seen: Sightings, rooms: dict[Place, int]) -> dict[Place, Settled]:
    """Place every exported allocation; *rooms* are bytes there that nobody is charged for.

    While its maker lives, an exported allocation is part of the maker's own charge, and
    there is no room for it: then its keeper is a bystander, who will keep it one day.
    Nothing says who made an allocation. So those that no listed process is charged enough
    for come first, and those whose keeper is close to a possible maker last.
    """
    drafts = {place: _Draft(room=room) for place, room in rooms.items()}
    groups = by_identity(share for share in seen.shares if _may_be_nvidias(share))
    for shares in sorted(groups, key=lambda group: _closeness(seen, group)):
        place, certain = _place_of(shares, drafts)
        if place is None:
            continue
        draft = drafts[place]
        if _fits(shares[0].nbytes, draft.room):
            draft.kept.append((shares, certain))
            draft.room = max(0, draft.room - shares[0].nbytes)
        else:
            draft.charged.append(shares)
    return {place: _settled(seen, draft) for place, draft in drafts.items()}


def _settled(seen: Sightings, draft: _Draft) -> Settled:
    doubtful = bool(draft.charged) or seen.is_partial
    entries = [
        _entry(seen, shares, certain, _living_makers(seen, shares) if doubtful else [])
        for shares, certain in draft.kept
    ]
    return Settled(entries, _bystanders(seen, draft.charged))


def _living_makers(seen: Sightings, shares: list[Share]) -> list[int]:
    """Listed processes that may have made an allocation and live: then it is in use."""
    return [pid for pid in _makers(seen, shares) if seen.alive(pid)]


def _makers(seen: Sightings, shares: list[Share]) -> list[int]:
    """Listed processes that are charged enough to have made an allocation."""
    told = next((share.gpu for share in shares if share.gpu is not None), None)
    charges = [each for gpu in seen.gpus.values() if told in (None, gpu.index) for each in gpu.charges]
    nbytes = shares[0].nbytes
    return sorted({each.process.pid for each in charges if each.nbytes is None or each.nbytes >= nbytes})


def _closeness(seen: Sightings, shares: list[Share]) -> int:
    """0: no listed process can have made it; 2: one that can is its keeper, or of its family or session."""
    makers = _makers(seen, shares)
    keeping = {share.process.pid for share in shares}
    if any(_are_close(seen, pid, maker) for pid in keeping for maker in makers):
        return 2
    return 1 if makers else 0


def _are_close(seen: Sightings, pid: int, maker: int) -> bool:
    if maker == pid or maker in ancestors(seen, pid):
        return True
    sessions = [seen.processes[each][1].session for each in (pid, maker) if each in seen.processes]
    return len(sessions) == 2 and bool(sessions[0]) and sessions[0] == sessions[1]


def _may_be_nvidias(share: Share) -> bool:
    return share.exporter is None or share.exporter.startswith("nv")


def _place_of(shares: list[Share], drafts: dict[Place, _Draft]) -> tuple[Place | None, bool]:
    """Where an allocation lies: an import tells it; a dma-buf does not, so room decides."""
    told = next((share for share in shares if share.gpu is not None), None)
    possible = [place for place in drafts if told is None or place[0] == told.gpu]
    if told is not None and told.gpu_instance is not None:
        possible = [place for place in possible if place[1] == told.gpu_instance]
    roomiest = max(possible, key=lambda place: drafts[place].room, default=None)
    return roomiest, len(possible) == 1


def _fits(nbytes: int, room: int) -> bool:
    return nbytes - nbytes // _SLACK <= room


def _entry(seen: Sightings, shares: list[Share], certain: bool, makers: list[int]) -> Entry:
    """*makers* may be charged for it after all; *certain* says that it lies on this GPU."""
    pids = sorted({share.process.pid for share in shares})
    keeping = holders(seen, pids) or (holder(seen, shares[0].process),)
    evidence = [_statement(share) for share in shares]
    if makers:
        evidence.append(_doubt(shares[0].nbytes, makers))
    else:
        evidence.append("the driver's process lists charge these bytes to nobody")
    if not certain:
        evidence.append("a dma-buf does not say which GPU it is on; this one has room for it")
    return Entry(
        kind="exported",
        nbytes=shares[0].nbytes,
        holder=keeping[0],
        sharers=keeping[1:],
        evidence=tuple(evidence),
        confidence="fact" if certain and not makers else "likely",
        medium=shares[0].medium,
    )


def _doubt(nbytes: int, makers: list[int]) -> str:
    pids = ", ".join(map(str, makers[:_PIDS_SHOWN])) + (" and others" if len(makers) > _PIDS_SHOWN else "")
    return (
        f"{size(nbytes)} are charged to nobody; whether they are these cannot be told, for pid {pids} may"
        " have made these and be charged for them"
    )


def _statement(share: Share) -> str:
    if share.medium == "dmabuf":
        return f"descriptor {share.fd} of pid {share.process.pid} is a dma-buf of {size(share.nbytes)}"
    return (
        f"descriptor {share.fd} of pid {share.process.pid} is an exported allocation:"
        f" the driver imports a copy of it and maps {size(share.nbytes)}"
    )


def _bystanders(seen: Sightings, charged: list[list[Share]]) -> list[Bystander]:
    """Whoever has allocations of others open, once, with the bytes of all of them."""
    held: dict[ProcessRef, int] = {}
    for shares in charged:
        makers = _makers(seen, shares)
        for process in {share.process for share in shares if share.process.pid not in makers}:
            held[process] = held.get(process, 0) + shares[0].nbytes
    people = sorted(held.items(), key=lambda each: each[0].pid)
    return [Bystander(holder=holder(seen, process), exported_bytes=nbytes) for process, nbytes in people]

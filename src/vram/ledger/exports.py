"""Exported allocations and dma-bufs: memory that no process list names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from functools import cache

from msgspec import Struct

from vram.ledger.indexed_survey import ExportedDescriptor, IndexedSurvey, by_allocation, holder, holders
from vram.model.ledger import Confidence, Entry, OpenOnly
from vram.model.process import ProcessRef
from vram.units import size

# A GPU, and its GPU instance where MIG divides it.
Place = tuple[int, int | None]

_PIDS_SHOWN = 4

_CLOSE = 2
_ANY = 1 << 63  # a charge without a figure may be of any size
_NONE = -1


PlacedExports = tuple[list[Entry], list[OpenOnly]]
"""What exported memory adds to one place."""


class _Draft(Struct):
    """One place while allocations are given to it: those in its room, and those that have none."""

    room: int
    kept: list[tuple[list[ExportedDescriptor], bool]] = []
    charged: list[list[ExportedDescriptor]] = []


# The room is an estimate (it leaves out what contexts cost beyond their charge): an
# allocation may be short of room by this part of itself and still count as uncharged.
_SLACK = 16


def place_exports(
    survey: IndexedSurvey, rooms: dict[Place, int], unbounded: Collection[Place] = ()
) -> dict[Place, PlacedExports]:
    """Place every exported allocation; *rooms* are bytes there that no process is charged for.

    While its maker lives, an exported allocation is part of the maker's own charge, and
    there is no room for it: then a process that has it open holds it only when the maker has ended.
    Nothing says who made an allocation. So those that no listed process is charged enough
    for come first, and those whose holder is close to a possible maker last.

    In *unbounded* places CPU programs have bytes without a charge too, and room proves nothing: there a
    possible maker that is close to the holder is taken to be charged.
    """
    drafts = {place: _Draft(room=room) for place, room in rooms.items()}

    @cache
    def makers_on(gpu: int | None) -> _Makers:
        return _Makers(survey, gpu)

    def makers(shares: list[ExportedDescriptor]) -> _Makers:
        """Who may have made an allocation: processes on its GPU, or, where that is unknown, on any."""
        return makers_on(next((share.gpu for share in shares if share.gpu is not None), None))

    groups = by_allocation(share for share in survey.shares if _may_be_nvidias(share))
    for shares in sorted(groups, key=lambda group: makers(group).closeness(group)):
        place, certain = _place_of(shares, drafts)
        if place is None:
            continue
        draft = drafts[place]
        nbytes = shares[0].nbytes
        is_charged = place in unbounded and makers(shares).closeness(shares) == _CLOSE
        if nbytes - nbytes // _SLACK <= draft.room and not is_charged:
            draft.kept.append((shares, certain))
            draft.room = max(0, draft.room - nbytes)
        else:
            draft.charged.append(shares)
    # Bytes that are charged to no process prove nothing here: a descriptor that is on its way to another
    # process is in no process's list of files, and keeps as much.
    return {
        place: (
            [
                _entry(survey, shares, certain, makers(shares).living(shares[0].nbytes))
                for shares, certain in draft.kept
            ],
            _open_only(survey, draft.charged, makers),
        )
        for place, draft in drafts.items()
    }


class _Makers:
    """Listed processes and the most that each is charged: enough for an allocation, or not."""

    def __init__(self, survey: IndexedSurvey, reported: int | None) -> None:
        self._seen = survey
        self._most: dict[int, int] = {}
        self._of_session: dict[int, int] = {}
        for gpu in survey.gpus.values():
            for charge in gpu.charges if reported in (None, gpu.index) else ():
                pid, nbytes = charge.process.pid, _ANY if charge.nbytes is None else charge.nbytes
                self._most[pid] = max(nbytes, self._most.get(pid, nbytes))
        for pid, nbytes in self._most.items():
            if session := self._session(pid):
                self._of_session[session] = max(nbytes, self._of_session.get(session, nbytes))
        self._above = survey.ancestry.least_above({pid: -nbytes for pid, nbytes in self._most.items()})
        self._largest = max(self._most.values(), default=_NONE)
        self._ranked: list[int] | None = None
        self._first_living: list[tuple[int, ...]] = [()]

    def _session(self, pid: int) -> int | None:
        known = self._seen.processes.get(pid)
        return known[1].session if known else None

    def can_be(self, pid: int, nbytes: int) -> bool:
        """Whether *pid* is charged enough to have made an allocation of *nbytes*."""
        return self._most.get(pid, _NONE) >= nbytes

    def closeness(self, shares: list[ExportedDescriptor]) -> int:
        """0: no listed process can have made it; 2: one that can holds it, or is of its family or session."""
        nbytes = shares[0].nbytes
        if self._largest < nbytes:
            return 0
        pids = {each.process.pid for each in shares}
        return _CLOSE if any(self._close_to(pid) >= nbytes for pid in pids) else 1

    def _close_to(self, pid: int) -> int:
        """The most that this process, one above it, or one of its session is charged."""
        session = self._of_session.get(self._session(pid) or 0, _NONE)
        return max(self._most.get(pid, _NONE), -self._above(pid), session)

    def living(self, nbytes: int) -> tuple[int, ...]:
        """The first few of those that may have made an allocation and live: then it is in use."""
        if self._ranked is None:
            self._ranked = self._rank()
        return self._first_living[bisect_right(self._ranked, -nbytes)]

    def _rank(self) -> list[int]:
        alive = sorted((-nbytes, pid) for pid, nbytes in self._most.items() if self._seen.alive(pid))
        first: tuple[int, ...] = ()
        for _, pid in alive:
            if len(first) <= _PIDS_SHOWN or pid < first[-1]:
                first = tuple(sorted((*first, pid))[: _PIDS_SHOWN + 1])
            self._first_living.append(first)
        return [rank for rank, _ in alive]


def _may_be_nvidias(share: ExportedDescriptor) -> bool:
    return share.exporter is None or share.exporter.startswith("nv")


def _place_of(shares: list[ExportedDescriptor], drafts: dict[Place, _Draft]) -> tuple[Place | None, bool]:
    """Where an allocation lies: an import shows it; a dma-buf does not, so room decides."""
    reported = next((share for share in shares if share.gpu is not None), None)
    possible = [place for place in drafts if reported is None or place[0] == reported.gpu]
    if reported is not None and reported.gpu_instance is not None:
        possible = [place for place in possible if place[1] == reported.gpu_instance]
    roomiest = max(possible, key=lambda place: drafts[place].room, default=None)
    return roomiest, len(possible) == 1


def _entry(
    survey: IndexedSurvey, shares: list[ExportedDescriptor], certain: bool, makers: Sequence[int]
) -> Entry:
    """*makers* may be charged for it after all; *certain* says that it lies on this GPU."""
    evidence = [statement(share) for share in shares]
    if makers:
        evidence.append(_doubt(shares[0].nbytes, makers))
    else:
        evidence.append("the driver's process lists charge this memory to no process")
    if not certain:
        evidence.append("a dma-buf does not name its GPU; this one has room for it")
    return exported_entry(survey, shares, evidence, "fact" if certain and not makers else "likely")


def exported_entry(
    survey: IndexedSurvey, shares: list[ExportedDescriptor], evidence: list[str], confidence: Confidence
) -> Entry:
    """The entry of one allocation, held by all processes that have a descriptor on it."""
    pids = {share.process.pid for share in shares}
    holding = holders(survey, pids) or (holder(survey, shares[0].process),)
    return Entry(
        kind="exported",
        nbytes=shares[0].nbytes,
        holder=holding[0],
        co_holders=holding[1:],
        sharing="all" if len(holding) > 1 else None,
        evidence=tuple(evidence),
        confidence=confidence,
        medium=shares[0].medium,
    )


def _doubt(nbytes: int, makers: Sequence[int]) -> str:
    pids = ", ".join(map(str, makers[:_PIDS_SHOWN])) + (" and others" if len(makers) > _PIDS_SHOWN else "")
    return (
        f"{size(nbytes)} is charged to no process, but that may be other memory: pid {pids} may have"
        " allocated this one and be charged for it"
    )


def statement(share: ExportedDescriptor) -> str:
    if share.medium == "dmabuf":
        return f"descriptor {share.fd} of pid {share.process.pid} is a dma-buf of {size(share.nbytes)}"
    return (
        f"descriptor {share.fd} of pid {share.process.pid} is an exported allocation: the driver imports"
        f" a copy of it and maps {size(share.nbytes)}"
    )


def _open_only(
    survey: IndexedSurvey,
    charged: list[list[ExportedDescriptor]],
    makers: Callable[[list[ExportedDescriptor]], _Makers],
) -> list[OpenOnly]:
    """Each process that has allocations of others open, once, with the bytes of all of them."""
    held: dict[ProcessRef, int] = {}
    for shares in charged:
        possible, nbytes = makers(shares), shares[0].nbytes
        for process in {share.process for share in shares if not possible.can_be(share.process.pid, nbytes)}:
            held[process] = held.get(process, 0) + nbytes
    people = sorted(held.items(), key=lambda each: each[0].pid)
    return [OpenOnly(holder=holder(survey, process), exported_bytes=nbytes) for process, nbytes in people]

"""Two readings compared: what came, went, grew or shrank since it was last reported. Codes and values only.

What is kept between readings is what the last ledger contained, so it does not grow with time. A GPU or a
source that does not answer proves nothing: what was known there stays until it answers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.answering import Answering, KnownGpu, free_bytes
from vram.diagnosis.held import is_taken_over
from vram.diagnosis.tracker import Item, Key, Tracker, finding_items, items_of
from vram.ledger.processes import identity, processes
from vram.model.change import Change, Event, WatchedGpu, WatchState
from vram.model.finding import Finding
from vram.model.hold import Identity
from vram.model.ledger import Holder, Ledger
from vram.model.process import ParkedProcess

# How many readings in a row must show something before it is reported: what is there for a moment, while
# a context is made or a family of processes exits, is not worth a line.
_READINGS = {"ghost": 2, "unattributed": 2, "hidden": 2, "finding": 3}
READINGS_TO_CONFIRM = max(_READINGS.values())
"""After so many comparisons with the same ledger, another one reports nothing."""
# A second reading follows at once for these. Findings can wait.
_URGENT = ("ghost", "unattributed", "hidden")
# In how many readings a process that is parked no more must be missing on its GPUs to have ended.
_RETURN_READINGS = 2

_APPEARED: dict[str, Event] = {
    "process": "started",
    "ghost": "ghost",
    "unattributed": "unattributed",
    "hidden": "hidden",
    "finding": "finding",
}
_GONE: dict[str, Event] = {
    "ghost": "ghost-gone",
    "unattributed": "unattributed-gone",
    "hidden": "hidden-gone",
    "finding": "finding-resolved",
}
_ORDER: dict[Event, int] = {event: at for at, event in enumerate(get_args(Event))}


class _Tracked(Struct, eq=False):
    """An item, what was last reported of it, and in how many readings in a row it was there, or was not."""

    item: Item
    reported_bytes: int | None
    readings: int = 1
    missing: int = 0
    is_reported: bool = False

    @property
    def key(self) -> Key:
        return self.item.key

    @property
    def members(self) -> frozenset[Identity | None]:
        return self.item.members


class Comparison:
    """Compares each ledger with what was last reported; changes of less than *min_bytes* add up."""

    def __init__(self, min_bytes: int) -> None:
        self._min_bytes = max(1, min_bytes)
        self._tracker: Tracker[_Tracked] = Tracker()
        self._answering = Answering(self._min_bytes)
        self._states: dict[Identity, tuple[str, bool]] = {}
        self._parked: dict[Identity, ParkedProcess] = {}
        self._returning: dict[Identity, int] = {}
        # Of one reading: by how much each process grew on a GPU since the one before, and what ended there.
        self._grown: list[tuple[Item, int]] = []
        self._ended: list[Item] = []
        self._is_first = True
        self._at = ""

    @property
    def needs_confirmation(self) -> bool:
        """Whether something was there in one reading only, and another one should follow soon."""
        return any(
            not each.is_reported and not each.missing and each.item.topic in _URGENT for each in self._tracker
        )

    def begin(self, ledger: Ledger, findings: tuple[Finding, ...]) -> WatchState:
        """Take the first reading; everything in it counts as reported."""
        present = self.compare(ledger, findings)
        return WatchState(
            at=ledger.taken_at,
            host=ledger.host.name,
            gpus=tuple(self._watched_gpu(key, gpu) for key, gpu in self._answering.gpus.items()),
            present=tuple(each for each in present if each.event != "gpu-added"),
        )

    def compare(self, ledger: Ledger, findings: tuple[Finding, ...]) -> tuple[Change, ...]:
        """Return what changed, and remember *ledger* as reported."""
        self._at = ledger.taken_at
        living = {pid: each.holder for pid, each in processes(ledger).items()}
        changes, keys = self._answering.compare(ledger)
        items = list(self._items(ledger, findings, keys, living))
        parked = {(each.pid, each.started_at): each for each in ledger.parked}
        self._grown, self._ended = [], []
        matched = list(self._match(items, living, parked.keys() | self._parked.keys()))
        changes += self._with_sources(matched) if self._grown and self._ended else matched
        changes += self._parking(parked, items)
        changes += self._stops()
        changes += self._answering.freed(keys)
        self._is_first = False
        return tuple(sorted(changes, key=lambda change: _ORDER[change.event]))

    # ---- processes, ghosts, unnamed memory and findings ----

    def _items(
        self, ledger: Ledger, findings: tuple[Finding, ...], keys: dict[int, Key], living: dict[int, Holder]
    ) -> Iterator[Item]:
        yield from filter(self._counts, items_of(ledger, keys))
        numbers = {gpu.index: keys[at] for at, gpu in enumerate(ledger.gpus)}
        yield from finding_items(findings, living, numbers)

    def _counts(self, item: Item) -> bool:
        """Whether unnamed memory is worth an event; what was reported counts until half of that is left."""
        if item.topic not in ("unattributed", "hidden"):
            return True
        known = self._tracker.find(item)
        is_known = known is not None and known.is_reported
        return (item.nbytes or 0) >= (self._min_bytes // 2 if is_known else self._min_bytes)

    def _match(self, items: list[Item], living: dict[int, Holder], away: set[Identity]) -> Iterator[Change]:
        """Compare *items* with those before; *away* are processes that are parked, or were until now."""
        for item, known, _ in self._tracker.match(filter(self._is_comparable, items)):
            if known is None:
                yield from self._arrived(item, away)
            else:
                yield from self._still_there(known, item)
        is_removed = self._answering.is_removed
        for known in self._tracker.missing(
            lambda each: is_removed(each.item.gpus) or self._is_comparable(each.item)
        ):
            if not is_removed(known.item.gpus):  # otherwise the event about the GPU says it
                yield from self._missing(known, living, away)

    def _is_comparable(self, item: Item) -> bool:
        return self._answering.is_comparable(item.gpus, item.topic)

    def _arrived(self, item: Item, away: set[Identity]) -> Iterator[Change]:
        tracked = _Tracked(item, item.nbytes)
        self._tracker.keep(tracked)
        if item.topic == "process" and identity(item.holder) in away:
            tracked.is_reported = True  # by "unparked"
            return
        yield from self._confirm(tracked)

    def _confirm(self, tracked: _Tracked) -> Iterator[Change]:
        item = tracked.item
        if self._is_first or tracked.readings >= _READINGS.get(item.topic, 1):
            tracked.is_reported, tracked.reported_bytes = True, item.nbytes
            if item.topic == "ghost":
                self._answering.owe(item, -1)
            yield self._of_item(_APPEARED[item.topic], item, item.nbytes)

    def _still_there(self, tracked: _Tracked, item: Item) -> Iterator[Change]:
        if item.topic == "process" and item.nbytes is not None and tracked.item.nbytes is not None:
            growth = item.nbytes - tracked.item.nbytes
            if growth > 0:
                self._grown.append((item, growth))
        tracked.item, tracked.missing = item, 0
        tracked.readings += 1
        self._tracker.keep(tracked)
        if not tracked.is_reported:
            yield from self._confirm(tracked)
            return
        reported = tracked.reported_bytes
        if reported is None or item.nbytes is None:
            tracked.reported_bytes = item.nbytes if item.nbytes is not None else reported
            return
        change = item.nbytes - reported
        if abs(change) >= self._min_bytes and item.topic != "finding":
            tracked.reported_bytes = item.nbytes
            yield self._of_item("grew" if change > 0 else "shrank", item, change)

    def _missing(self, tracked: _Tracked, living: dict[int, Holder], away: set[Identity]) -> Iterator[Change]:
        item, holder = tracked.item, tracked.item.holder
        if not tracked.is_reported:
            return
        tracked.missing += 1
        if item.topic == "finding" and tracked.missing < _READINGS["finding"]:
            self._tracker.keep(tracked)
            return
        if item.topic != "finding":
            self._answering.owe(item, 1)
        if item.topic != "process":
            yield self._gone(_GONE[item.topic], item)
        elif holder is not None and identity(holder) not in away:
            is_alive = identity(living.get(holder.pid)) == identity(holder)
            if not is_alive:
                self._ended.append(item)
            yield self._gone("released" if is_alive else "ended", item)

    def _gone(self, event: Event, item: Item) -> Change:
        return self._of_item(event, item, None if item.nbytes is None else -item.nbytes, held_bytes=0)

    def _with_sources(self, changes: list[Change]) -> Iterator[Change]:
        """*changes*, and of processes that grew, whose memory they have likely taken over."""
        pairs = [
            (item, ended)
            for item, growth in self._grown
            for ended in self._ended
            if item.gpus == ended.gpus and self._is_nvidia(item) and _is_one_user(item, ended)
            if is_taken_over(ended.nbytes, growth)
        ]
        sources: dict[tuple[Identity | None, int], int] = {}
        for item, ended in pairs:
            # Where it can be another one as well, nothing is known.
            is_only = sum(each is item or other is ended for each, other in pairs) == 1
            if is_only and ended.holder is not None:
                gpu = self._answering.gpus[item.gpus[0]].ledger.index
                sources[identity(item.holder), gpu] = ended.holder.pid
        for change in changes:
            source = None
            if change.event == "grew" and change.pid is not None and len(change.gpus) == 1:
                source = sources.get(((change.pid, change.started_at), change.gpus[0]))
            yield change if source is None else replace(change, taken_over_from=source)

    def _is_nvidia(self, item: Item) -> bool:
        gpu = self._answering.gpus.get(item.gpus[0])
        return gpu is not None and gpu.ledger.driver == "nvidia"

    # ---- parked, stopped, free again ----

    def _parking(self, now: dict[Identity, ParkedProcess], items: list[Item]) -> Iterator[Change]:
        for who, process in now.items():
            if who not in self._parked:
                yield self._of_parked("parked", process, -process.nbytes)
        returning: dict[Identity, int] = {}
        for who in self._parked.keys() - now.keys():
            process = self._parked[who]
            back = [each for each in items if each.topic == "process" and identity(each.holder) == who]
            readings = self._returning.get(who, 0) + 1
            if back:
                yield self._of_parked("unparked", process, sum(each.nbytes or 0 for each in back))
            elif readings < _RETURN_READINGS:
                # It was brought back after the GPU was read: the next reading shows it there.
                returning[who] = readings
            else:
                yield self._of_parked("ended", process, None)
        self._parked = now | {who: self._parked[who] for who in returning}
        self._returning = returning

    def _of_parked(self, event: Event, process: ParkedProcess, nbytes: int | None) -> Change:
        return self._change(
            event,
            gpus=process.gpus,
            nbytes=nbytes,
            held_bytes=nbytes if event == "unparked" else 0,
            kind="process",
            pid=process.pid,
            started_at=process.started_at,
            user=process.user,
            command=process.command,
        )

    def _stops(self) -> Iterator[Change]:
        held: dict[Identity, list[Item]] = {}
        for item in (each.item for each in self._tracker):
            who = identity(item.holder)
            if item.topic in ("process", "ghost") and who is not None:
                held.setdefault(who, []).append(item)
        states: dict[Identity, tuple[str, bool]] = {}
        for who, theirs in held.items():
            holder = theirs[0].holder
            assert holder is not None
            state = holder.state or "?"
            last, was_stopped = self._states.get(who, ("?", False))
            # Under strace a process is in state t for moments only; vram stops what it parks.
            is_stopped = state == "T" or (state == "t" and (last == "t" or self._is_first))
            is_stopped = is_stopped and who not in self._parked
            if is_stopped != was_stopped:
                whole = _everywhere(theirs)
                yield self._of_item("stopped" if is_stopped else "continued", whole, None)
            states[who] = (state, is_stopped)
        self._states = states

    # ---- values ----

    def _of_item(self, event: Event, item: Item, nbytes: int | None, held_bytes: int | None = None) -> Change:
        holder = item.holder
        gpus = self._answering.gpus
        whole = [gpus[key] for key in item.gpus if key in gpus]
        one = whole[0].ledger if len(whole) == 1 else None
        who: dict[str, Any] = {}
        if holder is not None:
            who = {
                "pid": holder.pid,
                "started_at": holder.started_at,
                "user": holder.user,
                "command": holder.command,
                "workload": holder.workload,
            }
        return self._change(
            event,
            gpus=tuple(gpu.ledger.index for gpu in whole),
            mig=one.mig if one else None,
            nbytes=nbytes,
            held_bytes=item.nbytes if held_bytes is None else held_bytes,
            free_bytes=free_bytes(one) if one else None,
            total_bytes=one.total_bytes if one else None,
            kind=item.kind,
            dead_pid=item.dead_pid,
            co_holders=item.co_holders,
            confidence=item.confidence,
            code=item.code,
            message=item.message,
            **who,
        )

    def _change(self, event: Event, **values: Any) -> Change:
        return Change(at=self._at, event=event, **values)

    def _watched_gpu(self, key: Key, gpu: KnownGpu) -> WatchedGpu:
        charged = [each for each in self._tracker if each.item.topic == "process" and key in each.item.gpus]
        return WatchedGpu(
            index=gpu.ledger.index,
            mig=gpu.ledger.mig,
            uuid=gpu.ledger.uuid,
            name=gpu.ledger.name,
            status=gpu.ledger.status,
            total_bytes=gpu.ledger.total_bytes,
            free_bytes=free_bytes(gpu.ledger),
            processes=len(charged),
        )


def _is_one_user(one: Item, other: Item) -> bool:
    return one.holder is not None and other.holder is not None and one.holder.uid == other.holder.uid


def _everywhere(items: list[Item]) -> Item:
    """One item for all that a process holds, on all its GPUs."""
    sizes = [each.nbytes for each in items if each.nbytes is not None]
    gpus = tuple(dict.fromkeys(key for each in items for key in each.gpus))
    return replace(items[0], gpus=gpus, nbytes=sum(sizes) if sizes else None)

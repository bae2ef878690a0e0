"""Two readings compared: what came, went, grew or shrank since it was last reported. Codes and values only.

What is kept between readings is what the last ledger contained, so it does not grow with time. A GPU or a
source that does not answer proves nothing: what was known there stays until it answers again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.watched import Identity, Item, Key, finding_items, holding, items_of, living
from vram.ledger.processes import identity, is_silent
from vram.model.change import Change, Event, WatchedGpu, WatchState
from vram.model.finding import Finding
from vram.model.ledger import GpuLedger, Holder, Ledger, ParkedProcess, known_bytes
from vram.model.observation import ProbeRun, Status

# How many readings in a row must show something before it is reported: what is there for a moment, while
# a context is made or a family of processes exits, is not worth a line.
_READINGS = {"ghost": 2, "unattributed": 2, "hidden": 2, "finding": 3}
# A second reading follows at once for these. Findings can wait.
_URGENT = ("ghost", "unattributed", "hidden")
# In how many readings after an end a GPU's free memory may still rise because of it.
_TEARDOWN_READINGS = 5
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
_FAILED = ("failed", "timeout")


class _Tracked(Struct):
    """An item, what was last reported of it, and in how many readings in a row it was there, or was not."""

    item: Item
    reported_bytes: int | None
    readings: int = 1
    missing: int = 0
    is_reported: bool = False


class _Gpu(Struct):
    """A GPU as it was read last. ``normal`` is the status it had at first."""

    ledger: GpuLedger
    normal: Status
    free_bytes: int | None = None
    condition: str = "ok"
    owed_bytes: int = 0
    """What ended processes and ghosts had, and what has not become free since."""
    owed_readings: int = 0


class Comparison:
    """Compares each ledger with what was last reported; changes of less than *min_bytes* add up."""

    def __init__(self, min_bytes: int) -> None:
        self._min_bytes = max(1, min_bytes)
        self._tracked: dict[Key, list[_Tracked]] = {}
        self._gpus: dict[Key, _Gpu] = {}
        self._states: dict[Identity, tuple[str, bool]] = {}
        self._parked: dict[Identity, ParkedProcess] = {}
        self._returning: dict[Identity, int] = {}
        self._failed: dict[str, ProbeRun] = {}
        self._normal_failures: set[str] = set()
        self._unproved: set[str] = set()
        self._driver_answers = True
        self._is_first = True
        self._at = ""

    @property
    def needs_confirmation(self) -> bool:
        """Whether something was there in one reading only, and another one should follow soon."""
        return any(
            not each.is_reported and not each.missing and each.item.topic in _URGENT
            for same in self._tracked.values()
            for each in same
        )

    def begin(self, ledger: Ledger, findings: tuple[Finding, ...]) -> WatchState:
        """Take the first reading; everything in it counts as reported."""
        present = self.compare(ledger, findings)
        return WatchState(
            at=ledger.taken_at,
            host=ledger.host.name,
            gpus=tuple(self._watched(key, gpu) for key, gpu in self._gpus.items()),
            present=tuple(each for each in present if each.event != "gpu-added"),
        )

    def compare(self, ledger: Ledger, findings: tuple[Finding, ...]) -> tuple[Change, ...]:
        """Return what changed, and remember *ledger* as reported."""
        self._at = ledger.taken_at
        known = living(ledger)
        keys = self._keys(ledger)
        changes = [*self._driver(ledger), *self._probes(ledger), *self._gpu_changes(ledger, keys)]
        items = list(self._items(ledger, findings, keys, known))
        parked = {(each.pid, each.started_at): each for each in ledger.parked}
        changes += self._matched(items, known, parked.keys() | self._parked.keys())
        changes += self._parking(parked, items)
        changes += self._stops()
        changes += self._freed(keys)
        self._is_first = False
        return tuple(sorted(changes, key=lambda change: _ORDER[change.event]))

    # ---- the driver, other sources, and GPUs as a whole ----

    def _driver(self, ledger: Ledger) -> Iterator[Change]:
        run = _probe(ledger, "nvml")
        answers = bool(ledger.gpus) or run is None or run.status in ("ok", "denied", "lost")
        if answers != self._driver_answers and run is not None:
            event: Event = "driver-back" if answers else "driver-gone"
            yield self._change(event, code=run.code, status=run.status, message=run.message)
        self._driver_answers = answers

    def _probes(self, ledger: Ledger) -> Iterator[Change]:
        failed = {run.name: run for run in ledger.probes if run.name != "nvml" and run.status in _FAILED}
        for name, run in failed.items():
            if name not in self._failed:
                yield self._of_probe("probe-failed", run)
        for name, run in self._failed.items():
            if name not in failed:
                yield self._of_probe("probe-recovered", run)
        self._failed = failed
        self._normal_failures = {name for name in failed if self._is_first or name in self._normal_failures}
        # One process with thousands of open files is always read in part, and alike.
        self._unproved = {
            name
            for name, run in failed.items()
            if name not in self._normal_failures and run.code != "too-many-files"
        }

    def _of_probe(self, event: Event, run: ProbeRun) -> Change:
        return self._change(event, probe=run.name, code=run.code, status=run.status, message=run.message)

    def _keys(self, ledger: Ledger) -> dict[int, Key]:
        """A name for each GPU of *ledger*, by its place there, that stays when GPUs are numbered anew."""
        numbers = {(gpu.ledger.index, gpu.ledger.mig): key for key, gpu in self._gpus.items()}
        return {at: _key(gpu, numbers) for at, gpu in enumerate(ledger.gpus)}

    def _gpu_changes(self, ledger: Ledger, keys: dict[int, Key]) -> Iterator[Change]:
        there = {keys[at]: gpu for at, gpu in enumerate(ledger.gpus)}
        if self._all_listed(ledger):
            for key in self._gpus.keys() - there.keys():
                gone = self._gpus.pop(key)
                self._forget(key)
                yield self._of_gpu("gpu-removed", gone.ledger)
        for key, gpu in there.items():
            known = self._gpus.get(key)
            if known is None:
                known = self._gpus[key] = _Gpu(gpu, gpu.status, _free_bytes(gpu))
                if not self._is_first:
                    yield self._of_gpu("gpu-added", gpu)
            condition = _condition(gpu)
            if condition != known.condition:
                event: Event = "gpu-back"
                if condition != "ok":
                    event = "gpu-lost" if condition == "lost" else "gpu-unreadable"
                yield self._of_gpu(event, gpu)
                known.condition = condition
            # A GPU that does not answer has the name and the UUID that it had.
            is_nameless = gpu.uuid is None and known.ledger.uuid is not None
            named = replace(gpu, uuid=known.ledger.uuid, name=known.ledger.name) if is_nameless else gpu
            known.ledger = named

    def _all_listed(self, ledger: Ledger) -> bool:
        """Whether a GPU that is not in *ledger* is not there: a driver that hangs may leave some out."""
        runs = (_probe(ledger, "nvml"), _probe(ledger, "drm"))
        return self._driver_answers and all(run is None or run.status not in _FAILED for run in runs)

    def _of_gpu(self, event: Event, gpu: GpuLedger) -> Change:
        return self._change(
            event,
            gpus=(gpu.index,),
            mig=gpu.mig,
            total_bytes=gpu.total_bytes,
            free_bytes=_free_bytes(gpu),
            status=gpu.status,
            code=gpu.code,
            message=gpu.message if gpu.status != "ok" else gpu.name,
        )

    def _forget(self, gpu: Key) -> None:
        for key, same in list(self._tracked.items()):
            left = [each for each in same if gpu not in each.item.gpus]
            if left:
                self._tracked[key] = left
            else:
                del self._tracked[key]

    # ---- processes, ghosts, unnamed memory and findings ----

    def _items(
        self, ledger: Ledger, findings: tuple[Finding, ...], keys: dict[int, Key], known: dict[int, Holder]
    ) -> Iterator[Item]:
        for at, gpu in enumerate(ledger.gpus):
            for item in items_of(gpu, keys[at]):
                if self._counts(item):
                    yield item
        numbers = {gpu.index: keys[at] for at, gpu in enumerate(ledger.gpus)}
        yield from finding_items(findings, known, numbers)

    def _counts(self, item: Item) -> bool:
        """Whether unnamed memory is worth an event; what was reported counts until half of that is left."""
        if item.topic not in ("unattributed", "hidden"):
            return True
        is_known = any(each.is_reported for each in self._tracked.get(item.key, ()))
        return (item.nbytes or 0) >= (self._min_bytes // 2 if is_known else self._min_bytes)

    def _is_comparable(self, item: Item) -> bool:
        """Whether this reading can prove that *item* is there, is not, or has another size."""
        if not self._driver_answers:
            return False
        if any(key not in self._gpus or not _answers(self._gpus[key]) for key in item.gpus):
            return False
        return "processes" not in self._unproved if item.topic == "process" else not self._unproved

    def _matched(self, items: list[Item], known: dict[int, Holder], away: set[Identity]) -> Iterator[Change]:
        """Compare *items* with those before; *away* are processes that are parked, or were until now."""
        before, self._tracked = self._tracked, {}
        for item in items:
            match = next((each for each in before.get(item.key, ()) if each.item.is_same(item)), None)
            if match is not None:
                before[item.key].remove(match)
            if not self._is_comparable(item):
                if match is not None:
                    self._keep(match)
                continue
            if match is None:
                yield from self._arrived(item, away)
            else:
                yield from self._still_there(match, item)
        for same in before.values():
            for tracked in same:
                if self._is_comparable(tracked.item):
                    yield from self._missing(tracked, known, away)
                else:
                    self._keep(tracked)

    def _keep(self, tracked: _Tracked) -> None:
        self._tracked.setdefault(tracked.item.key, []).append(tracked)

    def _arrived(self, item: Item, away: set[Identity]) -> Iterator[Change]:
        tracked = _Tracked(item, item.nbytes)
        self._keep(tracked)
        if item.topic == "process" and identity(item.holder) in away:
            tracked.is_reported = True  # by "unparked"
            return
        yield from self._confirm(tracked)

    def _confirm(self, tracked: _Tracked) -> Iterator[Change]:
        item = tracked.item
        if self._is_first or tracked.readings >= _READINGS.get(item.topic, 1):
            tracked.is_reported, tracked.reported_bytes = True, item.nbytes
            if item.topic == "ghost":
                self._owe(item, -1)
            yield self._of_item(_APPEARED[item.topic], item, item.nbytes)

    def _still_there(self, tracked: _Tracked, item: Item) -> Iterator[Change]:
        tracked.item, tracked.missing = item, 0
        tracked.readings += 1
        self._keep(tracked)
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

    def _missing(self, tracked: _Tracked, known: dict[int, Holder], away: set[Identity]) -> Iterator[Change]:
        item, holder = tracked.item, tracked.item.holder
        if not tracked.is_reported:
            return
        tracked.missing += 1
        if item.topic == "finding" and tracked.missing < _READINGS["finding"]:
            self._keep(tracked)
            return
        if item.topic != "finding":
            self._owe(item, 1)
        if item.topic != "process":
            yield self._gone(_GONE[item.topic], item)
        elif holder is not None and identity(holder) not in away:
            is_alive = identity(known.get(holder.pid)) == identity(holder)
            yield self._gone("released" if is_alive else "ended", item)

    def _gone(self, event: Event, item: Item) -> Change:
        return self._of_item(event, item, None if item.nbytes is None else -item.nbytes, held_bytes=0)

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
        held = holding([each.item for same in self._tracked.values() for each in same])
        states: dict[Identity, tuple[str, bool]] = {}
        for who, theirs in held.items():
            holder = theirs[0].holder
            assert holder is not None
            state = holder.state or "?"
            last, was_stopped = self._states.get(who, ("?", False))
            # Under strace a process is in state t for moments only.
            is_stopped = state == "T" or (state == "t" and (last == "t" or self._is_first))
            if is_stopped != was_stopped:
                whole = _everywhere(theirs)
                yield self._of_item("stopped" if is_stopped else "continued", whole, None)
            states[who] = (state, is_stopped)
        self._states = states

    def _owe(self, item: Item, sign: int) -> None:
        for key in item.gpus:
            gpu = self._gpus.get(key)
            if gpu is not None:
                gpu.owed_bytes = max(0, gpu.owed_bytes + sign * (item.nbytes or 0))
                gpu.owed_readings = _TEARDOWN_READINGS

    def _freed(self, keys: dict[int, Key]) -> Iterator[Change]:
        for key in keys.values():
            gpu = self._gpus[key]
            free = _free_bytes(gpu.ledger)
            if free is None or gpu.condition != "ok":
                continue
            rise = 0 if gpu.free_bytes is None else free - gpu.free_bytes
            gpu.free_bytes = free
            if gpu.owed_bytes and rise >= self._min_bytes:
                gpu.owed_bytes = max(0, gpu.owed_bytes - rise)
                yield replace(self._of_gpu("freed", gpu.ledger), nbytes=rise, status=None, message=None)
            gpu.owed_readings -= 1
            if gpu.owed_readings <= 0:
                gpu.owed_bytes = 0

    # ---- values ----

    def _of_item(self, event: Event, item: Item, nbytes: int | None, held_bytes: int | None = None) -> Change:
        holder = item.holder
        whole = [self._gpus[key] for key in item.gpus if key in self._gpus]
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
            free_bytes=_free_bytes(one) if one else None,
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

    def _watched(self, key: Key, gpu: _Gpu) -> WatchedGpu:
        charged = [
            each
            for same in self._tracked.values()
            for each in same
            if each.item.topic == "process" and key in each.item.gpus
        ]
        return WatchedGpu(
            index=gpu.ledger.index,
            mig=gpu.ledger.mig,
            uuid=gpu.ledger.uuid,
            name=gpu.ledger.name,
            status=gpu.ledger.status,
            total_bytes=gpu.ledger.total_bytes,
            free_bytes=_free_bytes(gpu.ledger),
            processes=len(charged),
        )


def _everywhere(items: list[Item]) -> Item:
    """One item for all that a process holds, on all its GPUs."""
    sizes = [each.nbytes for each in items if each.nbytes is not None]
    gpus = tuple(dict.fromkeys(key for each in items for key in each.gpus))
    return replace(items[0], gpus=gpus, nbytes=sum(sizes) if sizes else None)


def _key(gpu: GpuLedger, numbers: dict[tuple[int, str | None], Key]) -> Key:
    if gpu.uuid is not None:
        return (gpu.uuid, gpu.mig)
    return numbers.get((gpu.index, gpu.mig), (gpu.index, gpu.mig))


def _probe(ledger: Ledger, name: str) -> ProbeRun | None:
    return next((run for run in ledger.probes if run.name == name), None)


def _free_bytes(gpu: GpuLedger) -> int | None:
    if gpu.total_bytes is None and not gpu.instances:
        return None
    return known_bytes(entry for entry in gpu.entries if entry.kind == "free")


def _condition(gpu: GpuLedger) -> str:
    """ok, lost, or unreadable: its memory or its process lists could not be read."""
    if gpu.status == "lost":
        return "lost"
    return "unreadable" if is_silent(gpu) or gpu.status in ("failed", "timeout", "denied") else "ok"


def _answers(gpu: _Gpu) -> bool:
    """Whether it can be compared: it answers, or answers as little as it always did."""
    is_normal = gpu.ledger.status == gpu.normal and not is_silent(gpu.ledger)
    return gpu.condition == "ok" or (gpu.condition == "unreadable" and is_normal)

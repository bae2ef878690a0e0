"""What a watch compares: everything in one ledger that can come, go, grow or shrink, as items with a key."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vram.diagnosis.leftover import CODES, code_of
from vram.ledger.processes import identity, in_use, living_holders
from vram.model.finding import Finding
from vram.model.kinds import Kind
from vram.model.ledger import Confidence, Entry, GpuLedger, Holder, Ledger

Identity = tuple[int, int | None]
Key = tuple[object, ...]

NO_VISIBLE_HOLDER = "VR105"
UNEXPLAINED = "VR106"
# Reported by an event of their own: a ghost, unattributed memory, a stopped process, a GPU that is lost or
# does not answer.
_REPORTED_OTHERWISE = frozenset((*CODES, NO_VISIBLE_HOLDER, UNEXPLAINED, "VR201", "VR404", "VR405"))
_UNNAMED: dict[str, str] = {
    "unattributed": "unattributed",
    "hidden": "hidden",
    "guest": "hidden",
    "windows": "hidden",
}
MOST_CO_HOLDERS = 64


class Item(Struct, kw_only=True):
    """Something that two readings can both contain.

    It is the same as another one with the same ``key``, if they have a member in common or one of them
    names no members: memory that several processes hold is still the same when one of them has ended.
    """

    key: Key
    topic: str
    gpus: tuple[Key, ...] = ()
    members: frozenset[Identity | None] = frozenset()
    nbytes: int | None = None
    kind: Kind | None = None
    holder: Holder | None = None
    dead_pid: int | None = None
    co_holders: tuple[int, ...] = ()
    confidence: Confidence | None = None
    code: str | None = None
    message: str | None = None

    def is_same(self, other: Item) -> bool:
        return not self.members or not other.members or not self.members.isdisjoint(other.members)


def items_of(gpu: GpuLedger, gpu_key: Key) -> Iterator[Item]:
    """Processes, ghosts and unnamed memory of one GPU; parts of one process are one item."""
    found: dict[Key, list[Item]] = {}
    for entry in gpu.accounted:
        item = _item(entry, gpu_key)
        if item is None:
            continue
        same = found.setdefault(item.key, [])
        for earlier in same:
            if earlier.is_same(item):
                _add(earlier, item)
                break
        else:
            same.append(item)
    for same in found.values():
        yield from same


def _add(whole: Item, part: Item) -> None:
    if part.nbytes is not None:
        whole.nbytes = part.nbytes + (whole.nbytes or 0)
    whole.members |= part.members


def _item(entry: Entry, gpu: Key) -> Item | None:
    if in_use(entry):
        return _process(entry, gpu)
    if entry.kind == "orphaned":
        return _ghost(entry, ("ghost", gpu, entry.charged_pid), gpu)
    if entry.kind == "exported":
        return _ghost(entry, ("exported", gpu, entry.medium), gpu)
    if entry.kind_facts.charged:
        return _together(entry, gpu)
    topic = _UNNAMED.get(entry.kind)
    # "end": it ended while it was read, and the next reading is without it.
    if topic is None or entry.hidden_by == "end":
        return None
    return Item(
        key=(topic, gpu, entry.kind),
        topic=topic,
        gpus=(gpu,),
        nbytes=entry.nbytes,
        kind=entry.kind,
        confidence=entry.confidence,
        code=UNEXPLAINED if topic == "unattributed" else None,
    )


def _process(entry: Entry, gpu: Key) -> Item:
    return Item(
        key=("process", gpu, identity(entry.holder)),
        topic="process",
        gpus=(gpu,),
        nbytes=entry.nbytes,
        kind="process",
        holder=entry.holder,
        co_holders=_pids(entry.co_holders),
        confidence=entry.confidence,
    )


def _together(entry: Entry, gpu: Key) -> Item | None:
    """Memory that several processes have among them; the first of them stands for all."""
    people = living_holders(entry)
    if not people:
        return None
    item = _process(entry, gpu)
    item.key = ("together", gpu, entry.kind)
    item.members = frozenset(map(identity, people))
    item.holder, item.co_holders = people[0], _pids(people[1:])
    return item


def _ghost(entry: Entry, key: Key, gpu: Key) -> Item:
    people = living_holders(entry)
    return Item(
        key=key,
        topic="ghost",
        gpus=(gpu,),
        # A dead pid's memory is the same memory whoever holds it.
        members=frozenset(map(identity, people)) if entry.kind == "exported" else frozenset(),
        nbytes=entry.nbytes,
        kind=entry.kind,
        holder=people[0] if people else None,
        dead_pid=entry.charged_pid,
        co_holders=_pids(people[1:]),
        confidence=entry.confidence,
        code=code_of(entry) or NO_VISIBLE_HOLDER,
    )


def _pids(people: tuple[Holder, ...]) -> tuple[int, ...]:
    return tuple(each.pid for each in people[:MOST_CO_HOLDERS])


def finding_items(
    findings: tuple[Finding, ...], known: dict[int, Holder], gpu_keys: dict[int, Key]
) -> Iterator[Item]:
    """Problems and warnings that no other event reports."""
    for finding in findings:
        if finding.severity == "info" or finding.code in _REPORTED_OTHERWISE:
            continue
        holders = [known[pid] for pid in finding.pids if pid in known]
        gpus = tuple(gpu_keys[index] for index in finding.gpus if index in gpu_keys)
        yield Item(
            key=("finding", finding.code, gpus),
            topic="finding",
            gpus=gpus,
            members=frozenset(map(identity, holders)),
            nbytes=finding.nbytes,
            holder=holders[0] if holders else None,
            co_holders=_pids(tuple(holders[1:])),
            code=finding.code,
            message=finding.title,
        )


def living(ledger: Ledger) -> dict[int, Holder]:
    """Everybody alive whom the ledger names, by pid."""
    found: dict[int, Holder] = {}
    for gpu in ledger.gpus:
        for entry in gpu.accounted:
            for holder in living_holders(entry):
                found[holder.pid] = holder
        for each in gpu.open_only:
            if each.holder.alive:
                found.setdefault(each.holder.pid, each.holder)
    return found


def holding(items: list[Item]) -> dict[Identity, list[Item]]:
    """The items of each process that holds memory of its own, or of a ghost."""
    found: dict[Identity, list[Item]] = {}
    for item in items:
        who = identity(item.holder)
        if item.topic in ("process", "ghost") and who is not None:
            found.setdefault(who, []).append(item)
    return found

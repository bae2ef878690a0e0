"""What a watch compares: everything in one ledger that can come, go, grow or shrink, as items with a key."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from vram.diagnosis.leftover import GHOST_CODES, ghost_code
from vram.ledger.holds import find_holds
from vram.ledger.processes import identity, living_holders
from vram.model.finding import Finding
from vram.model.hold import Hold, Identity, What
from vram.model.kinds import Kind
from vram.model.ledger import Confidence, Entry, Holder, Ledger

Key = tuple[object, ...]

UNEXPLAINED = "VR106"
# Reported by an event of their own: a ghost, unattributed memory, a stopped process, a GPU that is lost or
# does not answer.
_REPORTED_OTHERWISE = frozenset((*GHOST_CODES, UNEXPLAINED, "VR201", "VR404", "VR405"))
_TOPICS: dict[What, str] = {
    "process": "process",
    "together": "process",
    "ghost": "ghost",
    "unattributed": "unattributed",
    "hidden": "hidden",
    "windows": "hidden",
}
_UNNAMED = ("unattributed", "hidden")
MAX_CO_HOLDERS = 64


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


def items_of(ledger: Ledger, gpu_keys: dict[int, Key]) -> Iterator[Item]:
    """What each hold has on each of the GPUs with a key; they are numbered by their place in *ledger*."""
    unnamed: dict[Key, Item] = {}
    for hold in find_holds(ledger):
        by_gpu: dict[int, list[Entry]] = {}
        for part in hold.parts:
            # "end": it ended while it was read, and the next reading is without it.
            if part.at in gpu_keys and part.entry.hidden_by != "end":
                by_gpu.setdefault(part.at, []).append(part.entry)
        topic = _TOPICS.get(hold.what)
        for at, entries in by_gpu.items() if topic else ():
            item = _item(hold, topic or "", gpu_keys[at], entries)
            if item.topic in _UNNAMED:
                _add(unnamed, item)
            else:
                yield item
    yield from unnamed.values()


def _add(unnamed: dict[Key, Item], item: Item) -> None:
    """Memory that nobody can be named for is one item on each GPU, whatever pids are known of it."""
    item.key = (item.topic, item.kind, *item.gpus)
    whole = unnamed.setdefault(item.key, item)
    if whole is not item and item.nbytes is not None:
        whole.nbytes = item.nbytes + (whole.nbytes or 0)


def _item(hold: Hold, topic: str, gpu: Key, entries: list[Entry]) -> Item:
    sizes = [entry.nbytes for entry in entries if entry.nbytes is not None]
    others = hold.workers if hold.what == "process" else hold.co_holders
    doubts: list[Confidence] = [entry.confidence for entry in entries if entry.confidence != "fact"]
    return Item(
        key=(*hold.key, gpu),
        topic=topic,
        gpus=(gpu,),
        members=hold.members,
        nbytes=sum(sizes) if sizes else None,
        kind="process" if topic == "process" else entries[0].kind,
        holder=hold.holder,
        dead_pid=hold.dead_pid,
        co_holders=_pids(others),
        confidence=doubts[0] if doubts else "fact",
        code=_code(hold, entries),
    )


def _code(hold: Hold, entries: list[Entry]) -> str | None:
    if hold.what == "unattributed":
        return UNEXPLAINED
    return ghost_code(entries[0]) if hold.what == "ghost" else None


def _pids(people: tuple[Holder, ...]) -> tuple[int, ...]:
    return tuple(each.pid for each in people[:MAX_CO_HOLDERS])


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

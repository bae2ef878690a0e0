"""What is the same in two readings: the only code that finds a hold of one reading again in the next.

`vram watch`, the service, its policies and its history each remember something else of what they find again:
what they reported, since when it is known, under which name, in which row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from msgspec import Struct

from vram.diagnosis.leftover import GHOST_CODES, ghost_code
from vram.ledger.holds import find_holds
from vram.ledger.processes import identity
from vram.model.finding import Finding
from vram.model.hold import Comparable, Hold, Identity, What, is_same_memory
from vram.model.ledger import Confidence, Entry, Holder, Kind, Ledger

Key = tuple[object, ...]
Value = TypeVar("Value")
Known = TypeVar("Known", bound=Comparable)
Shown = TypeVar("Shown", bound=Comparable)

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


class Tracker(Generic[Known]):
    """What is known of each thing from reading to reading; a record has the key and the members of its thing.

    Nothing here grows with time: what a reading proves to be gone is forgotten, unless the caller keeps it.
    """

    def __init__(self) -> None:
        self._known: dict[Key, list[Known]] = {}
        self._unmatched: dict[int, Known] = {}

    def __iter__(self) -> Iterator[Known]:
        return (each for same in self._known.values() for each in same)

    def find(self, thing: Comparable) -> Known | None:
        """What is known of *thing*; None where it is new."""
        return next((each for each in self._known.get(thing.key, ()) if is_same_memory(each, thing)), None)

    def keep(self, known: Known) -> None:
        self._known.setdefault(known.key, []).append(known)

    def clear(self) -> None:
        self._known.clear()

    def match(self, things: Iterable[Shown]) -> Iterator[tuple[Shown, Known | None, Known | None]]:
        """Take a reading: each of *things* with the record that goes on with it, and with what it was before.

        Both are None where it is new. Where one thing became two, its record goes on with the first, and the
        second was the same before. The caller keeps a record for each, and then asks for ``missing``.
        """
        before, self._known = self._known, {}
        self._unmatched = {id(each): each for same in before.values() for each in same}
        for thing in things:
            known = same = None
            for each in before.get(thing.key, ()):
                if is_same_memory(each, thing):
                    same = same or each
                    known = self._unmatched.pop(id(each), None)
                    if known is not None:
                        break
            yield thing, known, known or same

    def missing(self, is_proved: Callable[[Known], bool]) -> list[Known]:
        """The records that went on with nothing, forgotten; those of which *is_proved* is false are kept.

        A GPU or a source that does not answer proves nothing. What became one with another is shown by that.
        """
        gone: list[Known] = []
        kept: list[Known] = []
        for known in self._unmatched.values():
            is_gone = is_proved(known) or self.find(known) is not None
            (gone if is_gone else kept).append(known)
        for known in kept:
            self.keep(known)
        self._unmatched = {}
        return gone


class KnownHold(Struct, Generic[Value]):
    """A hold as the last reading showed it, and what is remembered of it while holders come and go."""

    hold: Hold
    value: Value

    @property
    def key(self) -> Key:
        return self.hold.key

    @property
    def members(self) -> frozenset[Identity]:
        return self.hold.members


class Item(Struct, kw_only=True):
    """What a hold has on one GPU, or a finding: what can come, go, grow or shrink."""

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


def items_of(ledger: Ledger, gpu_keys: dict[int, Key]) -> Iterator[Item]:
    """What each hold has on each of the GPUs with a key; they are numbered by their place in *ledger*."""
    unnamed: dict[Key, Item] = {}
    for hold in find_holds(ledger):
        by_gpu: dict[int, list[Entry]] = {}
        for part in hold.parts:
            # It ended while it was read, and the next reading is without it.
            has_ended = hold.what == "hidden" and part.entry.hidden_by == "end"
            if part.at in gpu_keys and not has_ended:
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
    """Memory without a known holder is one item on each GPU, whatever pids are known of it."""
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

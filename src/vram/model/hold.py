"""Processes hold bytes: the noun that every view, action, policy and record is about."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from vram.model.ledger import Entry, Holder, known_bytes
from vram.model.process import ParkedProcess
from vram.units import size

Identity = tuple[int, int | None]
"""A pid and the start time of its process: the pid alone names the process that has it now."""

What = Literal["process", "ghost", "together", "unattributed", "hidden", "windows", "parked"]
"""process: charged to a living process. ghost: its owner is dead. together: several processes have it among
them. parked: its bytes lie in host memory."""

State = Literal[
    "ghost",
    "unattributed",
    "stuck",
    "exiting",
    "stopped",
    "orphan",
    "hidden",
    "parked",
    "lent",
    "asleep",
    "idle",
    "ok",
    "windows",
    "open",
]


class StateFacts(NamedTuple):
    """How a state is shown, whether a user should do something about it, and what it means."""

    label: str
    trouble: bool
    meaning: str


STATES: dict[State, StateFacts] = {
    "ghost": StateFacts("GHOST", True, "the owner of this memory is dead; this process still holds it"),
    "unattributed": StateFacts("UNKNOWN", True, "in use, and no holder was found"),
    "stuck": StateFacts("STUCK", True, "is inside the kernel, and no signal reaches it"),
    "exiting": StateFacts("EXITING", True, "is exiting, and has not released its memory yet"),
    "stopped": StateFacts("STOPPED", True, "stopped by a signal or a debugger; keeps its memory"),
    "orphan": StateFacts("ORPHAN", True, "its launcher is dead; it still runs and keeps its memory"),
    "hidden": StateFacts("hidden", False, "cannot be seen from here"),
    "parked": StateFacts("parked", False, "paused; its GPU memory is in host memory"),
    "lent": StateFacts("lent", False, "paused for a `vram borrow`; its GPU memory is in host memory"),
    "asleep": StateFacts("asleep", False, "stopped until it is wanted; its GPU memory is in host memory"),
    "idle": StateFacts("idle", False, "sleeps, and its GPUs do no work"),
    "ok": StateFacts("ok", False, "in use"),
    "windows": StateFacts("windows", False, "a program of Windows"),
    "open": StateFacts("open", False, "has a GPU's files open, and holds no memory"),
}
"""What a hold's processes do with it: the one vocabulary of states."""


class HeldPart(Struct, frozen=True):
    """Bytes of one hold on one GPU: ``at`` is its place in the ledger, ``gpu`` its number.

    ``place`` is that number as a word, or a MIG device such as "0:1". ``line`` is the place of ``entry``
    among the GPU's entries.
    """

    at: int
    gpu: int
    place: str
    entry: Entry
    line: int = 0


class HoldShare(Struct, frozen=True):
    """As much of a hold as a finding is about; ``key`` and ``members`` are those of :class:`Hold`."""

    key: tuple[str | int | None, ...]
    members: frozenset[Identity]
    certain: bool
    has_holders: bool
    bytes_by_gpu: tuple[tuple[int, int], ...]
    dead_pid: int | None = None

    @property
    def what(self) -> str | int | None:
        return self.key[0]

    def is_of(self, hold: Hold) -> bool:
        """Whether *hold*, of this reading or another one, is the one that this is a part of."""
        return is_same_memory(self, hold)


class Hold(Struct, frozen=True, kw_only=True):
    """Some bytes of GPU memory, on one GPU or several, and who holds them.

    ``holders`` are the living processes that must all release it before the bytes return; the first stands
    for all. Where ``one_of`` is true, one of them holds the bytes, unknown which; "together" means that they
    have the bytes among them. ``workers`` hold nothing of their own and belong to the holder.
    ``dead_pid`` is the dead owner of a ghost, None where no list names it. ``unseen_pid`` names
    a process that is not visible, or one of Windows, where there is no holder.
    """

    what: What
    state: State
    parts: tuple[HeldPart, ...] = ()
    holders: tuple[Holder, ...] = ()
    workers: tuple[Holder, ...] = ()
    dead_pid: int | None = None
    unseen_pid: int | None = None
    parked: ParkedProcess | None = None

    def __repr__(self) -> str:
        nbytes = "unknown bytes" if self.nbytes is None else size(self.nbytes)
        where = f" on GPU {', '.join(map(str, self.gpus))}" if self.gpus else ""
        people = f", held by pid {', '.join(str(each.pid) for each in self.holders)}" if self.holders else ""
        dead = "" if self.dead_pid is None else f", of dead pid {self.dead_pid}"
        return f"<Hold: {self.state}, {nbytes}{where}{dead}{people}>"

    @property
    def holder(self) -> Holder | None:
        return self.holders[0] if self.holders else None

    @property
    def pid(self) -> int | None:
        """That of the holder who stands for all; where none is visible, the pid that is known of it."""
        return self.holders[0].pid if self.holders else self.unseen_pid

    @property
    def co_holders(self) -> tuple[Holder, ...]:
        """The other holders of the same bytes."""
        return self.holders[1:]

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """What finds it again in another reading; where there are ``members``, together with one of them."""
        if self.dead_pid is not None:
            return self.what, self.dead_pid
        if self.what in ("process", "parked"):
            return self.what, self.holders[0].pid, self.holders[0].started_at
        if self.holders:
            return self.what, self.parts[0].entry.medium
        return self.what, self.parts[0].entry.kind, self.unseen_pid or self.parts[0].place

    @property
    def members(self) -> frozenset[Identity]:
        """Those of whom one must still hold it for it to be the same memory; empty where ``key`` says it."""
        if self.dead_pid is not None or self.what in ("process", "parked"):
            return frozenset()
        return frozenset((each.pid, each.started_at) for each in self.holders)

    def is_same(self, other: Hold) -> bool:
        """Whether another reading shows the same memory, also where holders came or went."""
        return is_same_memory(self, other)

    @property
    def share(self) -> HoldShare:
        """All of it, as a finding names it."""
        nbytes: dict[int, int] = {}
        for part in self.parts:
            nbytes[part.gpu] = nbytes.get(part.gpu, 0) + (part.entry.nbytes or 0)
        return HoldShare(
            key=self.key,
            members=self.members,
            certain=self.certain,
            has_holders=bool(self.holders),
            bytes_by_gpu=tuple(sorted(nbytes.items())),
            dead_pid=self.dead_pid,
        )

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(part.entry for part in self.parts)

    @property
    def nbytes(self) -> int | None:
        """The sum over its GPUs, as far as it is known; None where nothing is."""
        sizes = [part.entry.nbytes for part in self.parts if part.entry.nbytes is not None]
        return sum(sizes) if sizes or not self.parts else None

    @property
    def known_bytes(self) -> int:
        """As ``nbytes``, and 0 where nothing is known."""
        return known_bytes(part.entry for part in self.parts)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({part.gpu for part in self.parts}))

    @property
    def certain(self) -> bool:
        """Whether it is a fact that these processes hold it."""
        return all(part.entry.confidence == "fact" for part in self.parts)

    @property
    def one_of(self) -> bool:
        return any(part.entry.sharing == "one" for part in self.parts)

    def bytes_on(self, gpu: int) -> int | None:
        """What lies on one GPU; None where that is unknown."""
        sizes = [
            part.entry.nbytes for part in self.parts if part.gpu == gpu and part.entry.nbytes is not None
        ]
        return sum(sizes) if sizes else None

    def bytes_by_place(self) -> dict[str, int | None]:
        """What lies on each GPU or MIG device, in their order."""
        found: dict[str, int | None] = {}
        for part in self.parts:
            known = found.get(part.place)
            nbytes = part.entry.nbytes
            found[part.place] = known if nbytes is None else (known or 0) + nbytes
        return {place: found[place] for place in sorted(found, key=place_order)}

    @property
    def evidence(self) -> tuple[str, ...]:
        return tuple(line for part in self.parts for line in part.entry.evidence)

    def bytes_of(self, kind: str) -> int:
        return known_bytes(part.entry for part in self.parts if part.entry.kind == kind)


class Comparable(Protocol):
    """What two readings can both contain: a hold, what it has on one GPU, a finding."""

    @property
    def key(self) -> tuple[object, ...]: ...
    @property
    def members(self) -> frozenset[Identity | None]: ...


def is_same_memory(one: Comparable, other: Comparable) -> bool:
    """The one rule: the same key, and a common member, unless one of them names no members.

    Memory that several processes hold is still the same when one of them has ended.
    """
    if one.key != other.key:
        return False
    return not one.members or not other.members or not one.members.isdisjoint(other.members)


def place_order(place: str) -> list[int]:
    return [int(number) for number in place.split(":")]

"""Holders as a tree: container or job, process, forked children, and what each keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from vram.diagnosis.leftover import way_back
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, ParkedProcess, Sharing
from vram.model.observation import HostFacts
from vram.model.windows import WindowsProcess
from vram.report.phrases import container, job, mig_device, pod, workload

# A snapshot may claim any ancestry; a real one is this deep only by accident.
_DEEPEST = 16


class Keep(Struct, frozen=True, kw_only=True):
    """Bytes that a process keeps. ``shared_with`` names who is counted for the same bytes.

    Of memory whose ``medium`` is "shared", that is as much as the other one shares with anybody.
    The kind "system" is memory of the machine beside the GPU's own; it is in no sum.
    ``mig`` names the MIG device where the GPU is divided: "0:1".
    ``nbytes`` None: how many they are is unknown. ``windows`` is the Windows process that
    holds them. ``certain`` False: it is likely, and no fact, that it holds them. ``sharing`` is the
    ledger's: "one" means that it holds them, or one of those that share them.
    """

    gpu: int
    kind: str
    nbytes: int | None
    shared_with: int | None = None
    medium: str | None = None
    mig: str | None = None
    windows: WindowsProcess | None = None
    certain: bool = True
    sharing: Sharing | None = None


class Kin(Struct, frozen=True, kw_only=True):
    """A process, what it keeps, whose files it inherited, and its children that hold something.

    ``exported_bytes`` is what it has a handle on while the maker is charged for it. An MPS
    server has its clients as children; ``mps_server`` is the server of a client.
    """

    holder: Holder
    keeps: tuple[Keep, ...]
    inherited_from: int | None
    exported_bytes: int | None
    children: tuple[Kin, ...]
    mps_server: int | None = None


class Household(Struct, frozen=True, kw_only=True):
    """One container, job or unit; name None gathers the processes that belong to none.

    ``at_least``: somebody in it holds an unknown amount, so ``nbytes`` is the least that it can be.
    """

    name: str | None
    nbytes: int
    processes: tuple[Kin, ...]
    at_least: bool = False


class WhoReport(Struct, frozen=True, kw_only=True):
    """``vram who --json``. ``unnamed`` are bytes whose holder could not be named."""

    schema: Literal[2]
    taken_at: str
    host: HostFacts
    households: tuple[Household, ...]
    unnamed: tuple[Keep, ...]
    by: str | None = None
    parked: tuple[ParkedProcess, ...] = ()
    way_back: str | None = None
    """The one command that gives the memory of dead owners back, where there is any."""


class _Person:
    """A tree node while it is being put together."""

    def __init__(self, holder: Holder) -> None:
        self.holder = holder
        self.keeps: list[Keep] = []
        self.inherited_from: int | None = None
        self.exported_bytes: int | None = None
        self.mps_server: int | None = None
        self.parent: _Person | None = None
        self.children: list[_Person] = []
        self.height = 1

    def ancestors(self) -> Iterator[_Person]:
        person: _Person | None = self
        while person is not None:
            yield person
            person = person.parent

    @property
    def own_bytes(self) -> int:
        return sum(
            keep.nbytes or 0 for keep in self.keeps if keep.shared_with is None and keep.kind != "system"
        )

    @property
    def nbytes(self) -> int:
        return self.own_bytes + sum(child.nbytes for child in self.children)

    def settled(self) -> Kin:
        children = sorted(self.children, key=lambda child: (-child.nbytes, child.holder.pid))
        return Kin(
            holder=self.holder,
            keeps=tuple(self.keeps),
            inherited_from=self.inherited_from,
            exported_bytes=self.exported_bytes,
            children=tuple(child.settled() for child in children),
            mps_server=self.mps_server,
        )


def who(ledger: Ledger, by: str | None = None) -> WhoReport:
    """Return everyone who keeps bytes or has a GPU's files open, by what started them.

    *by* chooses one kind of group: everybody is then counted where it belongs itself, and stands
    below its parent or server only where both belong there.
    """
    census = _Census(by)
    for gpu in ledger.gpus:
        for entry in gpu.accounted:
            census.count(gpu, entry)
        for entry in gpu.system.entries if gpu.system and gpu.total_bytes != 0 else ():
            if entry.holder is not None:
                census.count(gpu, entry, "system")
    for gpu in ledger.gpus:
        for each in gpu.open_only:
            person = census.person(each.holder)
            person.inherited_from = each.inherited_from or person.inherited_from
            if each.exported_bytes is not None:
                person.exported_bytes = (person.exported_bytes or 0) + each.exported_bytes
    census.join_families()
    return WhoReport(
        schema=2,
        taken_at=ledger.taken_at,
        host=ledger.host,
        by=by,
        households=census.households(),
        unnamed=tuple(census.unnamed),
        parked=ledger.parked,
        way_back=way_back(ledger),
    )


class _Census:
    def __init__(self, by: str | None = None) -> None:
        self._by = by
        self.people: dict[tuple[int, int | None], _Person] = {}
        self._first_with: dict[int, _Person] = {}
        self.unnamed: list[Keep] = []

    def person(self, holder: Holder) -> _Person:
        identity = (holder.pid, holder.started_at)
        if identity not in self.people:
            self.people[identity] = _Person(holder)
            self._first_with.setdefault(holder.pid, self.people[identity])
        return self.people[identity]

    def count(self, gpu: GpuLedger, entry: Entry, kind: str | None = None) -> None:
        if not entry.kind_facts.used or entry.nbytes == 0:
            return
        keep = Keep(
            gpu=gpu.index,
            kind=kind or entry.kind,
            nbytes=entry.nbytes,
            medium=entry.medium,
            mig=mig_device(gpu, entry),
            windows=entry.windows if entry.kind == "windows" else None,
            certain=entry.confidence == "fact",
            sharing=entry.sharing,
        )
        if entry.holder is None:
            self.unnamed.append(keep)
            return
        keeper = self.person(entry.holder)
        keeper.keeps.append(keep)
        keeper.mps_server = entry.mps_server or keeper.mps_server
        for co_holder in entry.co_holders:
            self.person(co_holder).keeps.append(replace(keep, shared_with=entry.holder.pid))
        if entry.kind == "orphaned" and entry.charged_pid is not None and entry.sharing != "one":
            self._remember_the_dead(entry, entry.charged_pid)

    def _remember_the_dead(self, entry: Entry, charged_pid: int) -> None:
        """The dead parent heads its family: it is the pid that people see in other tools."""
        parent = self._first_with.get(charged_pid)
        if parent is None:
            gone = Holder(pid=charged_pid, started_at=None, user=None, command=None, alive=False)
            parent = self.person(gone)
        for holder in entry.holders:
            if holder.pid != charged_pid:
                child = self.person(holder)
                child.inherited_from = charged_pid
                _adopt(parent, child)

    def join_families(self) -> None:
        by_pid = {person.holder.pid: person for person in self.people.values()}
        for person in list(self.people.values()):
            parent_pid = person.inherited_from or person.mps_server or person.holder.parent
            parent = by_pid.get(parent_pid) if parent_pid is not None else None
            if person.parent is None and parent is not None and self._belong_together(parent, person):
                _adopt(parent, person)

    def _belong_together(self, parent: _Person, child: _Person) -> bool:
        return self._by is None or _home(parent, self._by) == _home(child, self._by)

    def households(self) -> tuple[Household, ...]:
        homes: dict[str, list[_Person]] = {}
        for person in self.people.values():
            if person.parent is None:
                homes.setdefault(_home(person, self._by), []).append(person)
        built = [_household(name, people) for name, people in homes.items()]
        return tuple(sorted(built, key=lambda home: (home.name is None, -home.nbytes)))


def _adopt(parent: _Person, child: _Person) -> None:
    line = list(parent.ancestors())
    if child.parent is not None or child in line or len(line) + child.height > _DEEPEST:
        return
    child.parent = parent
    parent.children.append(child)
    for above, ancestor in enumerate(line, 1):
        ancestor.height = max(ancestor.height, child.height + above)


def _home(person: _Person, by: str | None) -> str:
    """What started a process; of the dead nothing is known, so their children speak for them."""
    own = _group(person.holder, by)
    if own or person.holder.alive or not person.children:
        return own
    return _group(person.children[0].holder, by)


def _group(holder: Holder, by: str | None) -> str:
    origin = holder.workload
    match by:
        case "job":
            return job(origin)
        case "pod":
            return pod(origin, full=True)
        case "container":
            return container(origin, full=True)
        case "notebook":
            return f"notebook {origin.notebook}" if origin.notebook else ""
        case "unit":
            return origin.unit or ""
        case "user":
            return holder.user or ""
    return workload(origin, full=True)


def _household(name: str, people: list[_Person]) -> Household:
    people.sort(key=lambda person: (-person.nbytes, person.holder.pid))
    nbytes = sum(person.nbytes for person in people)
    processes = tuple(person.settled() for person in people)
    at_least = any(map(_has_unknown_size, processes))
    return Household(name=name or None, nbytes=nbytes, processes=processes, at_least=at_least)


def _has_unknown_size(kin: Kin) -> bool:
    return any(keep.nbytes is None for keep in kin.keeps) or any(map(_has_unknown_size, kin.children))

"""Entries become holds: who holds which bytes, gathered once for every view, action, policy and record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple
from weakref import ReferenceType, ref

from msgspec.structs import replace

from vram.ledger.instances import mig_device
from vram.ledger.processes import identity, in_use, living_holder, living_holders
from vram.model.hold import HeldPart, Hold, State, What
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, OpenOnly

# A snapshot may claim any ancestry; a real one is this deep only by accident.
MAX_DEPTH = 16


class _Found(NamedTuple):
    """The holds of one ledger: those with bytes, and with them those that have none."""

    of: ReferenceType[Ledger]
    held: tuple[Hold, ...]
    whole: tuple[Hold, ...]


# Those of the ledger that was asked about last: several views of one reading ask one after the other.
_last: _Found | None = None


def find_holds(ledger: Ledger, *, empty: bool = False) -> tuple[Hold, ...]:
    """Everything that is held on the GPUs of *ledger*, and what is parked; each held byte is in one hold.

    With *empty* also entries of no bytes: where the driver's figures overlap, a process may be charged with
    nothing that is left to count. Code that ends processes must know of these, too.
    """
    global _last
    last = _last
    if last is None or last.of() is not ledger:
        whole = _find(ledger, _lines(ledger, empty=True))
        has_empty = any(part.entry.nbytes == 0 for hold in whole for part in hold.parts)
        held = _find(ledger, _lines(ledger, empty=False)) if has_empty else whole
        last = _last = _Found(ref(ledger, _forget), held, whole)
    return last.whole if empty else last.held


def _forget(gone: ReferenceType[Ledger]) -> None:
    """Keep nothing of a ledger that is no longer referred to."""
    global _last
    if _last is not None and _last.of is gone:
        _last = None


def _lines(ledger: Ledger, *, empty: bool) -> Iterator[HeldPart]:
    for at, gpu in enumerate(ledger.gpus):
        whole = str(gpu.index)
        for line, entry in enumerate(gpu.accounted):
            if entry.kind_facts.held and (empty or entry.nbytes != 0):
                place = (mig_device(gpu, entry) or whole) if gpu.instances else whole
                yield HeldPart(at, gpu.index, place, entry, line)


def _find(ledger: Ledger, lines: Iterable[HeldPart]) -> tuple[Hold, ...]:
    drafts = _Drafts()
    for part in lines:
        living = living_holders(part.entry)
        drafts.of(part.entry, part.place, living).add(part, living)
    found = drafts.all()
    _give_workers(found, open_only(ledger))
    working = _on_working_gpus(ledger)
    return (*(draft.finished(working) for draft in found), *_parked(ledger))


def narrow(hold: Hold, wanted: Callable[[Entry], bool]) -> Hold | None:
    """*hold* with its *wanted* entries alone, and with those who hold them; None where it has no such."""
    parts = tuple(part for part in hold.parts if wanted(part.entry))
    return _with(hold, parts) if parts else None


def _with(hold: Hold, parts: tuple[HeldPart, ...]) -> Hold:
    if len(parts) == len(hold.parts):
        return hold
    holders = hold.holders if hold.what == "process" else _living(part.entry for part in parts)
    return replace(hold, parts=parts, holders=holders)


def on_gpu(hold: Hold, at: int) -> Hold:
    """*hold* with what it has on the GPU at this place in the ledger, which must be some."""
    return _with(hold, tuple(part for part in hold.parts if part.at == at))


def by_first_holder(hold: Hold, wanted: Callable[[Holder], bool]) -> Iterator[tuple[Holder, Hold]]:
    """Each *wanted* process that stands first among the holders of some bytes of *hold*, with these bytes."""
    found: dict[object, tuple[Holder, list[HeldPart]]] = {}
    for part in hold.parts:
        holder = living_holder(part.entry)
        if part.entry.nbytes and holder is not None and wanted(holder):
            found.setdefault(identity(holder), (holder, []))[1].append(part)
    for holder, parts in found.values():
        yield holder, _with(hold, tuple(parts))


def everyone(hold: Hold) -> tuple[Holder, ...]:
    """All living processes that must release *hold*: also children that have a process's files."""
    return hold.holders if hold.what != "process" else _living(hold.entries)


def _living(entries: Iterable[Entry]) -> tuple[Holder, ...]:
    return tuple({identity(each): each for entry in entries for each in living_holders(entry)}.values())


def in_ledger_order(holds: Iterable[Hold], also: Iterable[HeldPart] = ()) -> list[HeldPart]:
    """The parts of *holds*, and *also* these, as the ledger has them: GPU by GPU, the largest first."""
    parts = (*(part for hold in holds for part in hold.parts), *also)
    return sorted(parts, key=lambda part: (part.at, part.line))


def by_gpu(holds: Iterable[Hold], also: Iterable[HeldPart] = ()) -> dict[int, list[HeldPart]]:
    """The same by the place of their GPU in the ledger, where there are any."""
    found: dict[int, list[HeldPart]] = {}
    for part in in_ledger_order(holds, also):
        found.setdefault(part.at, []).append(part)
    return found


def on_each_gpu(
    ledger: Ledger, wanted: Callable[[Entry], bool], *, empty: bool = False
) -> Iterator[tuple[GpuLedger, list[Hold]]]:
    """Each GPU, and the holds of its own memory with their *wanted* bytes alone, the largest first."""
    found: dict[int, list[Hold]] = {}
    for hold in find_holds(ledger, empty=empty):
        parts: dict[int, list[HeldPart]] = {}
        for part in hold.parts:
            if wanted(part.entry):
                parts.setdefault(part.at, []).append(part)
        for at, on_it in parts.items():
            found.setdefault(at, []).append(_with(hold, tuple(on_it)))
    for at, gpu in enumerate(ledger.gpus):
        # What is accounted for on a GPU without memory of its own lies in the machine's.
        holds = found.get(at, []) if gpu.total_bytes != 0 else []
        yield gpu, sorted(holds, key=lambda hold: hold.parts[0].line)


def overhead(ledger: Ledger) -> Iterator[HeldPart]:
    """What is in use and held by no process: contexts cost it beyond what they are charged with."""
    for at, gpu in enumerate(ledger.gpus):
        for line, entry in enumerate(gpu.accounted):
            if entry.kind_facts.used and not entry.kind_facts.held and entry.nbytes != 0:
                yield HeldPart(at, gpu.index, str(gpu.index), entry, line)


def _on_working_gpus(ledger: Ledger) -> set[int]:
    """The processes on GPUs that work, or do not say whether they do."""
    found: set[int] = set()
    for gpu in ledger.gpus:
        if gpu.facts is not None and gpu.facts.utilization == 0:
            continue
        entries = (*gpu.accounted, *(gpu.system.entries if gpu.system else ()))
        found.update(holder.pid for entry in entries for holder in living_holders(entry))
        found.update(each.holder.pid for each in gpu.open_only)
    return found


def open_only(ledger: Ledger) -> dict[int, OpenOnly]:
    """The processes that have a GPU's files open and hold no memory on any GPU, by pid."""
    if not any(gpu.open_only for gpu in ledger.gpus):
        return {}
    holding = {
        holder.pid for gpu in ledger.gpus for entry in gpu.accounted for holder in living_holders(entry)
    }
    return {
        each.holder.pid: each
        for gpu in ledger.gpus
        for each in gpu.open_only
        if each.holder.alive and each.holder.pid not in holding
    }


class _Draft:
    """A hold while it is being put together."""

    def __init__(self, what: What, dead_pid: int | None = None, unseen_pid: int | None = None) -> None:
        self.what: What = what
        self.dead_pid = dead_pid
        self.unseen_pid = unseen_pid
        self.parts: list[HeldPart] = []
        self.holders: dict[object, Holder] = {}
        self.workers: dict[int, Holder] = {}

    def add(self, part: HeldPart, living: tuple[Holder, ...]) -> None:
        self.parts.append(part)
        if self.what != "process":
            self.holders.update((identity(each), each) for each in living)
            return
        first, *children = living
        self.holders.setdefault(identity(first), first)
        # Forked children that have its files: its memory returns when they have ended too.
        self.workers.update((each.pid, each) for each in children)

    def join(self, other: _Draft) -> None:
        self.parts += other.parts
        self.holders.update(other.holders)

    def finished(self, working: set[int]) -> Hold:
        """The hold; *working* are those on GPUs that may be at work."""
        holders = tuple(self.holders.values())
        return Hold(
            what=self.what,
            state=self._state(holders[0] if holders else None, working),
            parts=tuple(self.parts),
            holders=holders,
            workers=tuple(self.workers.values()),
            dead_pid=self.dead_pid,
            unseen_pid=self.unseen_pid,
        )

    def _state(self, holder: Holder | None, working: set[int]) -> State:
        if self.what == "together":
            return "ok"
        if self.what != "process":
            return self.what
        assert holder is not None
        if holder.exiting:
            return "exiting"
        if holder.state == "D" or holder.kill_pending:
            return "stuck"
        if holder.state in ("T", "t"):
            return "stopped"
        if holder.job is not None and holder.job.is_orphan:
            return "orphan"
        return "idle" if holder.state == "S" and holder.pid not in working else "ok"


class _Drafts:
    """All holds while they are being put together, by what makes their entries one."""

    def __init__(self) -> None:
        self._by_key: dict[object, _Draft] = {}
        self._shared: list[_Draft] = []
        self._shared_by: dict[tuple[object, ...], _Draft] = {}

    def all(self) -> list[_Draft]:
        distinct = {id(draft): draft for draft in self._shared_by.values()}
        return [*self._by_key.values(), *distinct.values()]

    def of(self, entry: Entry, place: str, living: tuple[Holder, ...]) -> _Draft:
        """The hold that *entry*, held by *living*, belongs to."""
        if in_use(entry):
            return self._keyed(("process", identity(entry.holder)), _Draft("process"))
        if entry.kind in ("unattributed", "guest"):
            what: What = "unattributed" if entry.kind == "unattributed" else "hidden"
            return self._keyed((entry.kind, place), _Draft(what))
        if entry.kind == "windows":
            pid = entry.windows.pid if entry.windows else None
            return self._keyed(("windows", pid or place), _Draft("windows", unseen_pid=pid))
        if entry.kind == "hidden":
            pid = entry.holder.pid if entry.holder else entry.charged_pid
            group = entry.cgroup.path if entry.cgroup else None
            return self._keyed(("hidden", pid or place, group), _Draft("hidden", unseen_pid=pid))
        if entry.kind_facts.charged and living:
            return self._among("together", "", living)
        dead = entry.charged_pid or (entry.holder.pid if entry.holder and not living else None)
        if dead is not None:
            return self._keyed(("ghost", dead), _Draft("ghost", dead_pid=dead))
        if living:
            return self._among("ghost", entry.medium or "", living)
        return self._keyed(("ghost", place, entry.medium), _Draft("ghost"))

    def _keyed(self, key: object, new: _Draft) -> _Draft:
        return self._by_key.setdefault(key, new)

    def _among(self, what: What, medium: str, people: Iterable[Holder]) -> _Draft:
        """One hold for all entries that have a holder in common."""
        keys = [(what, medium, identity(each)) for each in people]
        known = {id(draft): draft for key in keys if (draft := self._shared_by.get(key))}
        # The smaller ones move into the largest: each holder moves a few times at most.
        draft = max(known.values(), key=lambda each: len(each.holders), default=_Draft(what))
        for other in known.values():
            if other is not draft:
                draft.join(other)
                for who in other.holders:
                    self._shared_by[what, medium, who] = draft
        self._shared_by.update(dict.fromkeys(keys, draft))
        return draft


def _give_workers(drafts: list[_Draft], with_files: dict[int, OpenOnly]) -> None:
    """Processes that hold nothing of their own belong to the one whose files they have, or to a parent."""
    owners = {holder.pid: draft for draft in drafts for holder in list(draft.holders.values())[:1]}
    for draft in drafts:
        # A worker with memory of its own is a holder of its own.
        draft.workers = {pid: worker for pid, worker in draft.workers.items() if pid not in owners}
    for pid, each in with_files.items():
        owner = next((owners[above] for above in _above(pid, with_files) if above in owners), None)
        if owner is not None:
            owner.workers[pid] = each.holder


def _above(pid: int, with_files: dict[int, OpenOnly]) -> Iterator[int]:
    """Whose files *pid* has, or its parent; then the same of that one, as long as it holds nothing itself."""
    for _ in range(MAX_DEPTH):
        each = with_files.get(pid)
        above = (each.inherited_from or each.holder.parent) if each else None
        if above is None:
            return
        yield above
        pid = above


def _parked(ledger: Ledger) -> Iterator[Hold]:
    for process in ledger.parked:
        holder = Holder(
            pid=process.pid,
            started_at=process.started_at,
            user=process.user,
            command=process.command,
            alive=True,
        )
        state: State = "asleep" if process.asleep else "parked" if process.lent_to is None else "lent"
        yield Hold(what="parked", state=state, holders=(holder,), parked=process)

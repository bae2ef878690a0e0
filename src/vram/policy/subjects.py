"""What a policy could be about in one reading: leftovers, idle processes, unexplained memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from vram.diagnosis.held import is_healthy
from vram.diagnosis.leftover import ghost_code
from vram.diagnosis.since import HoldMemory, Known
from vram.ledger.holds import find_holds
from vram.ledger.processes import ProcessMemory, identity, processes
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.policy.config import Policy, PolicyMatch, matches_any
from vram.policy.decision import Identity, PolicyTarget
from vram.reclaim.candidates import Leftover, leftovers
from vram.units import size

_MAX_EVIDENCE = 16
_MAX_LENGTH = 300


class Subject(Struct, frozen=True, kw_only=True):
    """One thing to decide about. ``key`` is the same in every reading in which nothing of it has changed."""

    key: str
    what: str
    gpus: tuple[int, ...]
    nbytes: int
    code: str | None = None
    holders: tuple[Holder, ...] = ()
    evidence: tuple[str, ...] = ()
    by_gpu: tuple[int, ...] = ()

    @property
    def targets(self) -> tuple[PolicyTarget, ...]:
        return tuple(
            PolicyTarget(each.pid, each.started_at, _encodable(each.user), _encodable(each.command))
            for each in self.holders
            if each.started_at is not None
        )


class _GhostName(NamedTuple):
    """``ghost`` stays whoever comes and goes; ``holders`` is another one as soon as somebody joins them.

    So nobody's owner is told twice of one ghost, and nobody is ended before the policy's delay is over.
    """

    ghost: str
    holders: str


class GhostNames:
    """A name for each ghost, the same in every reading that shows it."""

    def __init__(self) -> None:
        self._names: HoldMemory[_GhostName] = HoldMemory()
        self._by_entry: dict[int, _GhostName] = {}
        self._ledger: Ledger | None = None

    def read(self, ledger: Ledger) -> None:
        """Take a reading; the same ledger again changes nothing."""
        if ledger is self._ledger:
            return
        self._ledger = ledger  # kept, so that no other entry gets the same id
        ghosts = [hold for hold in find_holds(ledger) if hold.what == "ghost"]
        self._names.update(ghosts, _name)
        self._by_entry = {}
        for hold in ghosts:
            known = self._names.find(hold)
            self._by_entry.update((id(entry), known.value) for entry in hold.entries if known)

    def ghost(self, entries: Iterable[Entry]) -> str:
        return " and ".join(sorted({self._by_entry[id(entry)].ghost for entry in entries}))

    def holders(self, entries: Iterable[Entry]) -> str:
        """Empty where no entry has bytes: such entries are in no hold."""
        known = (self._by_entry.get(id(entry)) for entry in entries)
        return " and ".join(sorted({name.holders for name in known if name is not None}))

    def forget(self) -> None:
        self._names.clear()
        self._ledger = None


def _name(hold: Hold, known: Known[_GhostName] | None) -> _GhostName:
    if known is None:
        return _GhostName(_ghost_key(hold.dead_pid, hold.holders), _key("leftover", hold.holders))
    before = {identity(each) for each in known.hold.holders}
    if {identity(each) for each in hold.holders} <= before:
        return known.value
    return known.value._replace(holders=_key("leftover", hold.holders))


def subjects(
    policy: Policy, ledger: Ledger, allowed: Collection[Identity] = (), names: GhostNames | None = None
) -> Iterator[Subject]:
    """Everything in *ledger* that *policy* is about, where the GPUs concerned answer."""
    names = names or GhostNames()
    names.read(ledger)
    answering = {gpu.index for gpu in ledger.gpus if gpu.status == "ok"}
    found: Iterable[Subject]
    if policy.do == "end-leftovers":
        found = _proven(ledger, names)
    elif policy.do == "warn-owner":
        found = _leftovers(ledger, names)
    elif policy.do == "park-idle":
        found = _idle(ledger, allowed)
    else:
        found = _unexplained(ledger)
    for subject in found:
        if answering >= set(subject.gpus) and _is_meant(policy.match, subject):
            yield subject


def _proven(ledger: Ledger, names: GhostNames) -> Iterator[Subject]:
    """What `vram free` would end by itself, and nothing else."""
    for leftover in leftovers(ledger, processes(ledger)):
        holders = tuple(process.holder for process in leftover.processes)
        if ledger.host.uid != 0 and any(each.user != ledger.host.user for each in holders):
            continue
        if all(each.started_at is not None for each in holders):
            yield _of_leftover(leftover, holders, names)


def _of_leftover(leftover: Leftover, holders: tuple[Holder, ...], names: GhostNames) -> Subject:
    entries = [entry for _, entry in leftover.entries]
    return Subject(
        key=names.holders(entries) or _key("leftover", holders),
        what=f"{size(leftover.nbytes())} of dead owners, held by pid {_pids(holders)}",
        gpus=leftover.gpus,
        nbytes=leftover.nbytes(),
        code=leftover.code,
        holders=holders,
        evidence=_evidence(entries),
    )


def _leftovers(ledger: Ledger, names: GhostNames) -> Iterator[Subject]:
    """All memory of dead owners that somebody visible holds, also where that is not certain."""
    for hold in find_holds(ledger):
        holders = tuple(each for each in hold.holders if each.started_at is not None)
        if hold.what != "ghost" or not holders or not hold.nbytes:
            continue
        dead = "" if hold.dead_pid is None else f" (dead pid {hold.dead_pid})"
        yield Subject(
            key=names.ghost(hold.entries),
            what=f"{size(hold.nbytes)} of a dead owner{dead}, held by pid {_pids(holders)}",
            gpus=hold.gpus,
            nbytes=hold.nbytes,
            code=ghost_code(hold.entries[0]),
            holders=holders,
            evidence=_evidence(hold.entries),
        )


def _idle(ledger: Ledger, allowed: Collection[Identity]) -> Iterator[Subject]:
    on_nvidia = {gpu.index for gpu in ledger.gpus if gpu.driver == "nvidia" and not gpu.instances}
    for process in processes(ledger).values():
        holder = process.holder
        if (process.pid, holder.started_at) not in allowed or not _may_be_parked(process, on_nvidia):
            continue
        gpus = tuple(sorted(process.charged_by_gpu))
        yield Subject(
            key=_key("idle", (holder,)),
            what=f"{size(process.charged_bytes)} of idle pid {process.pid}",
            gpus=gpus,
            nbytes=process.charged_bytes,
            holders=(holder,),
            evidence=(*_evidence(process.charged), "it sleeps, and its GPUs report no work"),
            by_gpu=tuple(process.charged_by_gpu[gpu] or 0 for gpu in gpus),
        )


def _may_be_parked(process: ProcessMemory, on_nvidia: Collection[int]) -> bool:
    alone = not process.co_holders and not process.uses_mps and process.certain
    known = all(process.charged_by_gpu.values()) and set(process.gpus) <= set(on_nvidia)
    return (
        process.idle
        and bool(process.charged)
        and alone
        and known
        and process.protected is None
        and is_healthy(process.holder)
    )


def _unexplained(ledger: Ledger) -> Iterator[Subject]:
    for gpu in ledger.gpus:
        entries = [entry for entry in gpu.accounted if _is_unexplained(entry, ledger)]
        nbytes = known_bytes(entries)
        if nbytes:
            yield Subject(
                key=f"unexplained {_gpu_name(gpu)}",
                what=f"{size(nbytes)} in use on GPU {gpu.index} that nothing visible accounts for",
                gpus=(gpu.index,),
                nbytes=nbytes,
                evidence=_evidence(entries),
            )


def _is_unexplained(entry: Entry, ledger: Ledger) -> bool:
    # An ordinary user does not see everybody: what is hidden from one is no news.
    return entry.kind == "unattributed" or (entry.kind == "hidden" and ledger.host.uid == 0)


def _gpu_name(gpu: GpuLedger) -> str:
    return gpu.uuid or f"GPU {gpu.index}"


def _is_meant(match: PolicyMatch, subject: Subject) -> bool:
    if match.gpus and not set(subject.gpus) <= set(match.gpus):
        return False
    if subject.nbytes < match.min_bytes or (match.codes and subject.code not in match.codes):
        return False
    return all(_fits(match, holder) for holder in subject.holders)


def _fits(match: PolicyMatch, holder: Holder) -> bool:
    if match.not_users and (holder.user is None or matches_any(match.not_users, holder.user)):
        return False
    if (holder.age_s or 0.0) < match.min_age_s:
        return False
    workload = holder.workload
    return all(
        not patterns or matches_any(patterns, text)
        for patterns, text in (
            (match.users, holder.user),
            (match.commands, holder.command),
            (match.units, workload.unit),
            (match.slurm_jobs, workload.slurm_job),
            (match.containers, workload.container),
        )
    )


def _key(kind: str, holders: Iterable[Holder]) -> str:
    return f"{kind} " + ",".join(sorted(f"{each.pid}@{each.started_at}" for each in holders))


def _ghost_key(dead: int | None, holders: tuple[Holder, ...]) -> str:
    """Whose memory it was and who has it; the holders' start tells it from one of a reused pid."""
    if dead is None or not holders:
        return _key("ghost", holders)
    users = sorted({each.user or "?" for each in holders})
    return f"ghost of {dead} before {min(each.started_at or 0 for each in holders)} held by {','.join(users)}"


def _pids(holders: Iterable[Holder]) -> str:
    return ", ".join(str(each.pid) for each in holders)


def _evidence(entries: Iterable[Entry]) -> tuple[str, ...]:
    lines = dict.fromkeys(_encodable(line) or "" for entry in entries for line in entry.evidence)
    return tuple(lines)[:_MAX_EVIDENCE]


def _encodable(text: str | None) -> str | None:
    r"""*text* in a length that a log can carry; what was never UTF-8 becomes a visible \xNN."""
    if text is None:
        return None
    short = text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…"
    return short.encode("utf-8", "backslashreplace").decode()

"""What a policy decides about, the names of ghosts and jobs, whom a match means; what a kind of policy is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from vram.diagnosis.tracker import KnownHold, Tracker
from vram.ledger.holds import find_holds
from vram.ledger.jobs import HeldByJob, find_held_jobs
from vram.ledger.processes import ProcessMemory, identity, is_healthy
from vram.model.forecast import Forecast
from vram.model.hold import Hold
from vram.model.ledger import Entry, Holder, Ledger
from vram.policy.policy import (
    MESSAGES,
    Consent,
    DecidedAction,
    Identity,
    NotifyConfig,
    Policy,
    PolicyMatch,
    PolicyTarget,
    matches_any,
)

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
    told: tuple[PolicyTarget, ...] = ()
    """Whose owners are warned, besides what is done with the holders."""
    works: bool = False
    """One of the holders runs, or a GPU that one of them is on reports work, or does not say."""

    @property
    def targets(self) -> tuple[PolicyTarget, ...]:
        return tuple(
            PolicyTarget(each.pid, each.started_at, _encodable(each.user), _encodable(each.command))
            for each in self.holders
            if each.started_at is not None
        )


class _GhostName(NamedTuple):
    """``ghost`` stays while holders come and go; ``holders`` is another one as soon as one joins them.

    So no owner is told twice of one ghost, and no process is ended before the policy's delay is over.
    """

    ghost: str
    holders: str


class GhostNames:
    """A name for each ghost, the same in every reading that shows it."""

    def __init__(self) -> None:
        self._names: Tracker[KnownHold[_GhostName]] = Tracker()
        self._by_entry: dict[int, _GhostName] = {}
        self._ledger: Ledger | None = None

    def read(self, ledger: Ledger) -> None:
        """Take a reading; the same ledger again changes nothing."""
        if ledger is self._ledger:
            return
        self._ledger = ledger  # kept, so that no other entry gets the same id
        self._by_entry = {}
        for hold, _, before in self._names.match(hold for hold in find_holds(ledger) if hold.what == "ghost"):
            name = _name(hold, before)
            self._names.keep(KnownHold(hold, name))
            self._by_entry.update((id(entry), name) for entry in hold.entries)

    def ghost(self, entries: Iterable[Entry]) -> str:
        return " and ".join(sorted({self._by_entry[id(entry)].ghost for entry in entries}))

    def holders(self, entries: Iterable[Entry]) -> str:
        """Empty where no entry has bytes: such entries are in no hold."""
        known = (self._by_entry.get(id(entry)) for entry in entries)
        return " and ".join(sorted({name.holders for name in known if name is not None}))

    def forget(self) -> None:
        self._names.clear()
        self._ledger = None


def _name(hold: Hold, known: KnownHold[_GhostName] | None) -> _GhostName:
    if known is None:
        return _GhostName(_ghost_key(hold.dead_pid, hold.holders), holders_key("leftover", hold.holders))
    before = {identity(each) for each in known.hold.holders}
    if {identity(each) for each in hold.holders} <= before:
        return known.value
    return known.value._replace(holders=holders_key("leftover", hold.holders))


class JobNames:
    """A name for each orphaned job: the same while its processes end, another as soon as one joins them."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, frozenset[object]]] = {}
        self._joined = 0
        self._ledger: Ledger | None = None

    def read(self, ledger: Ledger) -> None:
        """Take a reading; the same ledger again changes nothing."""
        if ledger is not self._ledger:
            self._ledger = ledger
            orphans = [each for each in find_held_jobs(ledger) if each.is_orphan]
            self._known = {each.job.key: self._named(each) for each in orphans}

    def of(self, job: HeldByJob) -> str:
        return self._known[job.job.key][0]

    def forget(self) -> None:
        self._known.clear()
        self._ledger = None

    def _named(self, job: HeldByJob) -> tuple[str, frozenset[object]]:
        known, members = self._known.get(job.job.key), frozenset(map(identity, job.holders))
        if known is None:
            return holders_key("orphaned job", job.holders), members
        if members <= known[1]:
            return known[0], members
        # Numbered: who left and came back would have the job's former name, and with it its age.
        self._joined += 1
        return holders_key(f"orphaned job, joined {self._joined},", job.holders), members


def is_meant(match: PolicyMatch, subject: Subject) -> bool:
    """Whether a policy with this *match* is about *subject*: every holder must match."""
    if match.gpus and not set(subject.gpus) <= set(match.gpus):
        return False
    if subject.nbytes < match.min_bytes or (match.codes and subject.code not in match.codes):
        return False
    return all(_fits(match, holder) for holder in subject.holders)


def spares(match: PolicyMatch, subject: Subject) -> bool:
    """Whether a holder belongs to root or to a system user, and *match* does not say that name as a whole."""
    return any(_is_system_user(each.uid) and each.user not in match.users for each in subject.holders)


def _is_system_user(uid: int | None) -> bool:
    return uid is None or uid < _FIRST_USER or uid == _NOBODY


# As login.defs(5) and systemd divide them; below are root and the users of services.
_FIRST_USER, _NOBODY = 1000, 65534


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


def may_be_moved(process: ProcessMemory, ledger: Ledger) -> bool:
    """Whether all that *process* holds is known and its own, on GPUs whose driver can move it to the host."""
    whole = (gpu for gpu in ledger.gpus if gpu.driver == "nvidia" and not gpu.instances)
    on_nvidia = {gpu.index for gpu in whole if gpu.has_own_memory}
    alone = not process.co_holders and not process.uses_mps and process.certain
    known = all(process.charged_by_gpu.values()) and set(process.gpus) <= on_nvidia
    is_ours_to_move = process.protected is None and is_healthy(process.holder)
    return bool(process.charged) and alone and known and is_ours_to_move


def holders_key(kind: str, holders: Iterable[Holder]) -> str:
    """A name that is the same in every reading with these *holders*."""
    return f"{kind} " + ",".join(sorted(f"{each.pid}@{each.started_at}" for each in holders))


def _ghost_key(dead: int | None, holders: tuple[Holder, ...]) -> str:
    """Whose memory it was and who has it; the holders' start tells it from one of a reused pid."""
    if dead is None or not holders:
        return holders_key("ghost", holders)
    users = sorted({each.user or "?" for each in holders})
    return f"ghost of {dead} before {min(each.started_at or 0 for each in holders)} held by {','.join(users)}"


def pids_of(holders: Iterable[Holder]) -> str:
    return ", ".join(str(each.pid) for each in holders)


def evidence_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    lines = dict.fromkeys(_encodable(line) or "" for entry in entries for line in entry.evidence)
    return tuple(lines)[:_MAX_EVIDENCE]


def _encodable(text: str | None) -> str | None:
    r"""*text* in a length that a log can carry; what was never UTF-8 becomes a visible \xNN."""
    if text is None:
        return None
    short = text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…"
    return short.encode("utf-8", "backslashreplace").decode()


# ---- what a kind of policy is ----


PEOPLE = (
    "gpus",
    "users",
    "not-users",
    "min-size",
    "min-age",
    "commands",
    "units",
    "slurm-jobs",
    "containers",
)
"""The keys of a match that chooses among processes."""


class Situation(Struct, frozen=True, kw_only=True):
    """A reading, the policy that is asked, and the names of the reading's ghosts and jobs.

    ``allowed`` are the processes whose owners allow what the policy does, ``agreed`` those that may be asked
    for memory before a GPU is full; ``own_pids`` are the service and its ancestors.
    """

    policy: Policy
    ledger: Ledger
    names: GhostNames
    jobs: JobNames
    allowed: Collection[Identity] = ()
    own_pids: Collection[int] = ()
    forecasts: tuple[Forecast, ...] = ()
    agreed: Collection[Identity] = ()


class PolicyKind(Struct, frozen=True, kw_only=True):
    """One thing that a policy can do: ``name`` is what its table says, ``action`` what is decided.

    ``after_s`` is the delay where none is set. ``keys`` may be in its table beside those of every policy,
    ``match_keys`` in its match. ``check_match`` and ``check_notify`` raise ConfigError, which begins with
    *where*. ``preview`` is said after "would".
    """

    name: str
    action: DecidedAction
    after_s: float
    keys: tuple[str, ...]
    match_keys: tuple[str, ...]
    preview: str
    find: Callable[[Situation], Iterator[Subject]]
    check_match: Callable[[PolicyMatch, str], None] | None = None
    check_notify: Callable[[NotifyConfig, str], None] | None = None
    consent: Consent | None = None
    """What the owner of a process must have allowed."""
    waits_for_room: bool = False
    """Whether it acts only while a request waits for room."""
    again_after_s: float | None = None
    """After so long it does the same again about the same; ``again-after`` in its table. None: messages alone
    keep to that."""
    only_idle: bool = False
    """Whether it acts only on processes that were idle for a time, ``idle`` in its table."""
    gives_notice: bool = False
    """Whether it tells the owners before it acts, ``notice`` and ``notify`` in its table."""
    spares_system_users: bool = False
    """Whether root and the users of services must be named to be meant."""

    @property
    def is_message(self) -> bool:
        return self.action in MESSAGES

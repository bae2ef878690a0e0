"""A policy: what the service may do by itself, with whose memory, and when; and what it decided."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import Struct, field

from vram.diagnosis.leftover import CODES
from vram.model.moment import Moment
from vram.units import MIB

PolicyMode = Literal["dry-run", "act"]

MAX_TEXT_LENGTH = 256  # of what a pattern is compared with, and of a pattern
MIN_NARROWING = MIB


class PolicyMatch(Struct, frozen=True, kw_only=True):
    """Which memory a policy is about; what is empty excludes nothing.

    Every holder must match: a leftover of two users is matched only by a policy that means both.
    """

    gpus: tuple[int, ...] = ()
    users: tuple[str, ...] = ()
    not_users: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    min_bytes: int = 0
    min_age_s: float = 0.0
    commands: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    slurm_jobs: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()

    @property
    def narrows(self) -> bool:
        """Whether anything is surely left out. Ages and exceptions do not count: they match the rest."""
        patterns = (self.users, self.commands, self.units, self.slurm_jobs, self.containers)
        return bool(
            self.gpus
            or (self.codes and set(self.codes) < set(CODES))
            or self.min_bytes >= MIN_NARROWING
            or any(each and not any(map(_matches_everything, each)) for each in patterns)
        )


class NotifyConfig(Struct, frozen=True, kw_only=True):
    """How people are told. ``mail`` is a command that reads a message; ``{user}`` in it is the recipient."""

    terminals: bool = False
    mail: tuple[str, ...] = ()
    mail_to: str = ""
    webhook: str = ""
    webhook_token_file: str = ""


class Policy(Struct, frozen=True, kw_only=True):
    """What to do, to whom, after how long. ``after_s`` counts while the condition holds in every reading.

    ``do`` is the name of one of the kinds in ``policy/kinds/``.
    """

    name: str
    do: str
    mode: PolicyMode = "dry-run"
    after_s: float = 900.0
    readings: int = 3
    most_per_hour: int = 4
    all: bool = False
    match: PolicyMatch = PolicyMatch()
    grace_s: float = 10.0
    unpark_after_s: float = 60.0
    again_after_s: float = 86400.0
    idle_s: float = 1800.0
    """Of a kind that acts on idle processes alone: for so long they must have been idle without a pause."""
    notice_s: float = 900.0
    """Of a kind that tells the owner before it acts: so long before."""
    notify: NotifyConfig = NotifyConfig()
    full_in_s: float = 600.0
    """Of before-oom: it acts where a GPU is full so soon at the rate of now,"""
    min_free_bytes: int = 0
    """or where less than this is free."""


def matches_any(patterns: Sequence[str], text: str | None) -> bool:
    """Whether one of *patterns* matches the whole of *text*, of which so much is read as a pattern may have.

    Of longer text only the beginning is compared: that is a match only where the pattern leaves its end open.
    """
    if text is None:
        return False
    short = text[:MAX_TEXT_LENGTH]
    return any(
        fnmatchcase(short, pattern) and (len(short) == len(text) or pattern.endswith("*"))
        for pattern in patterns
    )


def _matches_everything(pattern: str) -> bool:
    """A pattern of wildcards alone; "?" and "[!x]" leave out so little that they do not count."""
    return not pattern.strip("*?") or pattern.startswith(("*[!", "[!"))


Identity = tuple[int, int]
"""A pid and the start time of the process that is meant."""

Relief = Literal["trim", "release", "sleep"]
"""What an owner can agree to, for the time before a GPU is full."""

Consent = Literal["park", "sleep"]
"""What may be done with a process while it is idle only where its owner allows it."""

DecidedAction = Literal["end", "park", "unpark", "sleep", "relieve", "warn", "alert", "announce"]
MESSAGES: tuple[DecidedAction, ...] = ("warn", "alert", "announce")
"""An owner is announced what will be done; the others are all that is done."""
Verdict = Literal["act", "dry-run", "capped", "refused"]
"""Only "act" has consequences."""

DecisionStatus = Literal["decided", "done", "refused", "failed", "unkillable", "not-needed"]


class PolicyTarget(Struct, frozen=True):
    """A process that a decision is about. A later one with its pid is another."""

    pid: int
    started_at: int
    user: str | None = None
    command: str | None = None

    @property
    def identity(self) -> Identity:
        return self.pid, self.started_at


class Waiter(Struct, frozen=True, kw_only=True):
    """A request that waits for ``nbytes`` on one of ``gpus`` (empty: any), or has got and still uses them."""

    number: int
    uid: int
    nbytes: int
    gpus: tuple[int, ...] = ()
    is_served: bool = False


class Decision(Struct, frozen=True, kw_only=True):
    """One decision with its evidence. ``subject`` names what it is about, the same in every reading.

    ``held_s`` and ``readings``: for how long, and in how many readings in a row, the condition was met.
    """

    number: int
    at: str
    policy: str
    do: DecidedAction
    mode: PolicyMode
    verdict: Verdict
    reason: str
    subject: str
    targets: tuple[PolicyTarget, ...] = ()
    gpus: tuple[int, ...] = ()
    nbytes: int = 0
    by_gpu: tuple[int, ...] = ()
    code: str | None = None
    evidence: tuple[str, ...] = ()
    held_s: float = 0.0
    readings: int = 0
    grace_s: float = 10.0
    notice_s: float = 0.0
    """Of an announcement: so long after it the rest is done."""
    told: tuple[PolicyTarget, ...] = ()
    """Of a relief: those that grow, whose owners are warned."""
    status: DecisionStatus = "decided"
    message: str = ""
    digest: str | None = None
    freed_bytes: int | None = None


class RememberedAct(Struct, frozen=True):
    """When a policy acted or sent a message about a subject: what the caps and periods are counted from."""

    policy: str
    subject: str
    is_message: bool
    wall: float
    boot: float
    boot_id: str

    @property
    def moment(self) -> Moment:
        return Moment(self.wall, self.boot, self.boot_id)


class RememberedNotice(Struct, frozen=True, kw_only=True):
    """When an owner was told that a policy would act ``notice_s`` later."""

    policy: str
    subject: str
    notice_s: float
    wall: float
    boot: float
    boot_id: str

    @property
    def moment(self) -> Moment:
        return Moment(self.wall, self.boot, self.boot_id)


class ParkedByPolicy(Struct, frozen=True, kw_only=True):
    """A process that a policy parked, and has to bring back. ``nbytes`` by GPU, in the order of ``gpus``."""

    policy: str
    target: PolicyTarget
    uid: int
    gpus: tuple[int, ...]
    nbytes: tuple[int, ...]
    boot_id: str
    unpark_after_s: float = 60.0
    by_pid: int = 0
    """The worker that parked it, as the owner's journal has it: what the owner parks again is the owner's."""


class AllowedProcess(Struct, frozen=True):
    """A process whose owner allowed over the socket that it is parked, or put to sleep, when idle."""

    pid: int
    started_at: int
    uid: int
    boot_id: str
    what: Consent = "park"

    @property
    def identity(self) -> Identity:
        return self.pid, self.started_at


class PolicyMemory(Struct, kw_only=True):
    """What a restart must not forget: else a service that crashes again and again would know no caps."""

    schema: int = 1
    acts: list[RememberedAct] = field(default_factory=list)
    unkillable: list[str] = field(default_factory=list)
    parked: list[ParkedByPolicy] = field(default_factory=list)
    allowed: list[AllowedProcess] = field(default_factory=list)
    notices: list[RememberedNotice] = field(default_factory=list)

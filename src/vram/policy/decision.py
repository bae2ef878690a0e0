"""What a policy decided, about whom and on what evidence; and what must be remembered across a restart."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from msgspec import Struct, field

from vram.policy.config import PolicyMode

Identity = tuple[int, int]
"""A pid and the start time of the process that is meant."""

DecidedAction = Literal["end", "park", "unpark", "warn", "alert"]
Verdict = Literal["act", "dry-run", "capped", "refused"]
"""Only "act" has consequences."""

DecisionStatus = Literal["decided", "done", "refused", "failed", "unkillable", "not-needed"]


class MomentLike(Protocol):
    """A point in time, as :class:`vram.serve.clock.Moment` has it."""

    @property
    def wall(self) -> float: ...
    @property
    def boot(self) -> float: ...
    @property
    def boot_id(self) -> str: ...


class PolicyTarget(Struct, frozen=True):
    """A process that a decision is about. Whoever has its pid later is somebody else."""

    pid: int
    started_at: int
    user: str | None = None
    command: str | None = None

    @property
    def identity(self) -> Identity:
        return self.pid, self.started_at


class Waiter(Struct, frozen=True, kw_only=True):
    """Somebody who waits for ``nbytes`` on one of ``gpus`` (empty: any), or has got and still uses them."""

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
    status: DecisionStatus = "decided"
    message: str = ""
    digest: str | None = None
    freed_bytes: int | None = None


class RememberedAct(Struct, frozen=True):
    """When a policy acted or told somebody about a subject: what the caps and periods are counted from."""

    policy: str
    subject: str
    is_message: bool
    wall: float
    boot: float
    boot_id: str


def rfc3339(wall: float) -> str:
    """*wall* in UTC, to the second; what no date can say becomes the nearest that can."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(min(max(0.0, wall), 253402300799.0)))


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
    """A process whose owner allowed over the socket that it is parked when idle."""

    pid: int
    started_at: int
    uid: int
    boot_id: str

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

"""What will be done, exactly; what came of it, measured; and what keeps a GPU from being reset."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.process import Job, ProcessRef

PLAN_SCHEMA = 2

StepKind = Literal["release", "trim", "park", "kill", "reset"]
"""The actions, least harm first."""

OutcomeStatus = Literal["done", "refused", "failed", "not-needed", "unkillable"]


class PlanRequest(Struct, frozen=True, kw_only=True):
    """What memory is asked for. ``pids`` and ``findings`` narrow it down; only ``pids`` name the healthy.

    ``available_bytes`` are to be available on one GPU afterwards: one of ``gpus`` (empty: any), by whatever
    frees them. ``goal_bytes`` are to be freed there, however much is available already. Without either all
    leftovers are planned. ``orphans`` allows to end jobs whose launcher is dead. ``caches`` allows to trim
    live processes too, ``release`` to ask servers for their memory, ``park_idle`` to park idle ones that
    were not named. ``up_to`` is the most harmful action allowed; ``only`` is the one action to use. Who is
    named and holds a leftover with others stands for all of them, unless ``alone``. ``tree`` means the
    descendants of ``pids`` too, as far as they are on a GPU, and ``job`` all that was launched together
    with them, their launcher first.
    """

    available_bytes: int | None = None
    goal_bytes: int | None = None
    gpus: tuple[int, ...] = ()
    up_to: StepKind | None = None
    only: StepKind | None = None
    findings: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()
    caches: bool = False
    release: bool = False
    park_idle: bool = False
    alone: bool = False
    tree: bool = False
    job: bool = False
    orphans: bool = False


class Skipped(Struct, frozen=True, kw_only=True):
    """A piece of memory that is left alone, who holds it, and why; ``command`` would change that.

    ``pid`` is None where no process can be named. ``others`` hold the same bytes, or only have its files
    open. ``leftover``: its owner is dead, so it is not in use, and still it was not freed.
    """

    pid: int | None
    nbytes: int
    user: str | None
    name: str | None
    why: str
    command: str = ""
    others: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    leftover: bool = False


class Target(Struct, frozen=True, kw_only=True):
    """A process as it was when the plan was made; acting re-checks every field.

    exec keeps the pid and the start time, so the executable and the user are part of who
    it is; a cgroup that changed means that another supervisor took charge of it meanwhile. ``image``
    tells an exec into the very same program; it is None where that cannot be seen.
    """

    process: ProcessRef
    uid: int
    user: str | None
    command: str
    executable: str | None
    cgroup: str | None = None
    image: str | None = None


class Step(Struct, frozen=True, kw_only=True):
    """One action on one target. ``predicted_bytes`` None: not known beforehand.

    Where several processes hold the same bytes, each has a step of its own and only the
    last of them predicts the bytes: one alone frees nothing.
    """

    kind: StepKind
    target: Target | None
    gpus: tuple[int, ...]
    predicted_bytes: int | None
    loses: str
    reversible: bool
    reason: str
    finding: str | None = None
    via: str | None = None


class Plan(Struct, frozen=True, kw_only=True):
    """Frozen: what was previewed is what runs. The digest covers everything but ``made_at``.

    ``goal_bytes`` are to be freed by it; where ``available_bytes`` were asked for, those that were missing
    (0: none).
    """

    schema: int = PLAN_SCHEMA
    made_at: str
    boot_id: str
    goal_bytes: int | None
    available_bytes: int | None = None
    gpus: tuple[int, ...]
    steps: tuple[Step, ...]
    digest: str


class JobActivity(Struct, frozen=True, kw_only=True):
    """What a job that a plan ends did in the second before: it may look idle, and still compute.

    ``cpu_s`` is the CPU time that ``pids`` used in that second, together; None where they had ended.
    ``gpu_percent`` is how busy each of their GPUs is with all that runs there; None where unknown.
    """

    job: Job
    pids: tuple[int, ...]
    cpu_s: float | None
    gpu_percent: dict[int, int | None]


class Draft(Struct, frozen=True, kw_only=True):
    """A plan, who is left alone by it, and what the jobs do that it ends.

    Only the plan has a digest: the rest is for reading, and differs each time it is read.
    """

    plan: Plan
    skipped: tuple[Skipped, ...] = ()
    activity: tuple[JobActivity, ...] = ()


class Outcome(Struct, frozen=True, kw_only=True):
    """What one step promised and what the device said afterwards."""

    step: Step
    status: OutcomeStatus
    used_before: int | None
    used_after: int | None
    took_s: float
    message: str | None = None

    @property
    def returned_bytes(self) -> int | None:
        if self.used_before is None or self.used_after is None:
            return None
        return self.used_before - self.used_after


class Receipt(Struct, frozen=True, kw_only=True):
    """Asked, promised, returned. ``available_bytes``: that much was to be available afterwards."""

    digest: str
    goal_bytes: int | None
    available_bytes: int | None = None
    promised_bytes: int | None
    returned_bytes: int | None
    outcomes: tuple[Outcome, ...]


# ---- what keeps a GPU from being reset ----


class Blocker(Struct, frozen=True, kw_only=True):
    """A process that must be gone first. ``command`` is empty where none can be named.

    ``nbytes`` is None where the GPU does not answer.
    """

    pid: int | None
    name: str | None
    user: str | None
    nbytes: int | None
    why: str
    command: str = ""

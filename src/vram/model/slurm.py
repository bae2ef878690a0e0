"""A Slurm job as its prolog and epilog are told of it, and what was found and done on its GPUs."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from vram.model.plan import OutcomeStatus

Hook = Literal["epilog", "prolog", "health"]

Evidence = Literal["step", "cgroup", "environment"]
"""How a process's job is known: it descends from a running slurmstepd; its control group; its environment."""

Whose = Literal["job", "ended-job", "running-job", "user", "other", "system", "unknown"]
"""To whom held memory belongs: to the job that has ended, to one whose epilog has run before, to a job that
runs now, to a process of the job's user outside every job, to another user, to a part of the system that is
never touched, or unknown."""

HookVerdict = Literal["clean", "held", "unknown"]


class SlurmJob(Struct, frozen=True, kw_only=True):
    """The job that slurmd runs a hook for. ``gpu_words`` are what Slurm calls its GPUs; None: it has none."""

    job: str
    uid: int
    user: str | None = None
    node: str | None = None
    gpu_words: tuple[str, ...] | None = None
    by_uuid: bool = False
    """Whether ``gpu_words`` are UUIDs; else they are numbers of device files, as in /dev/nvidia0."""


class JobClaim(Struct, frozen=True):
    """The job that a process belongs to, and how that is known; neither where it belongs to none."""

    job: str | None = None
    by: Evidence | None = None


class JobHolder(Struct, frozen=True, kw_only=True):
    """Memory of the GPUs in question that is held, by whom, and whose it is.

    ``nbytes`` None: the size is unknown. ``pid`` None: no visible process holds it. ``note`` says why it was
    not freed, or why its owner is unknown.
    """

    gpu: int
    nbytes: int | None
    pid: int | None
    user: str | None
    command: str | None
    whose: Whose
    job_of_process: str | None = None
    by: Evidence | None = None
    note: str = ""


class EndedProcess(Struct, frozen=True, kw_only=True):
    """A process that was ended, or was to be."""

    pid: int
    user: str | None
    command: str
    left_by: str
    by: Evidence
    status: OutcomeStatus
    message: str


class HookResult(Struct, frozen=True, kw_only=True):
    """What one run of a hook found and did: ``vram slurm epilog --json``.

    ``held`` is all memory that the verdict speaks of and, where it is no other's business, what is unknown.
    ``free_bytes`` has each GPU's free memory at the end, where the driver tells.
    """

    schema: Literal[2] = 2
    hook: Hook
    job: SlurmJob | None
    gpus: tuple[int, ...]
    verdict: HookVerdict
    reasons: tuple[str, ...] = ()
    ended: tuple[EndedProcess, ...] = ()
    held: tuple[JobHolder, ...] = ()
    freed_bytes: int | None = 0
    free_bytes: dict[int, int] = {}
    took_s: float = 0.0
    dry_run: bool = False

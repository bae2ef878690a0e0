"""Who: a process, named so that a reused pid can never be mistaken for it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

GivenUp = Literal["strict", "filters"]
"""How a process has given up system calls (seccomp): all but four, or those that its filters forbid."""


class ProcessRef(Struct, frozen=True, omit_defaults=True):
    """A process for good: a pid alone names the process that has it now.

    ``started_at`` is the kernel's start time in clock ticks since boot (field 22 of
    /proc/PID/stat). It is None when nothing in /proc answers for the pid: the process
    is dead, or lives where we cannot see.
    """

    pid: int
    started_at: int | None = None
    pid_namespace: int | None = None


class Workload(Struct, frozen=True):
    """What started a process, as its cgroup tells: container, pod, job or service.

    Names are other people's words: ``container_name`` is the runtime's; ``pod_name`` is the
    runtime's ("namespace/name"), or the process's own (a name alone); ``claimed_job`` (a Slurm
    job that only the environment speaks of), ``job_name`` and ``notebook`` (of a Jupyter
    kernel) are the process's own.
    """

    container: str | None = None
    runtime: str | None = None
    pod: str | None = None
    slurm_job: str | None = None
    slurm_step: str | None = None
    unit: str | None = None
    container_name: str | None = None
    pod_name: str | None = None
    claimed_job: str | None = None
    job_name: str | None = None
    notebook: str | None = None


Launcher = Literal[
    "torchrun",
    "deepspeed",
    "mpirun",
    "multiprocessing",
    "fork server",
    "vLLM",
    "SGLang",
    "Ray",
    "Jupyter",
    "debugpy",
    "torch.distributed",
]


class LaunchClaim(Struct, frozen=True, omit_defaults=True):
    """How a process says that it was launched, together with others of the same ``job``.

    ``direct``: it shows what only the launcher's own child has; else it may have inherited its environment
    from one. ``rank`` is its number among ``size`` in all and ``local_size`` on this machine.
    ``recorded_pid`` is its launcher's as the process recorded it, and ``recorded_lives`` whether that one
    still runs: None where its number is not one of ours.
    """

    by: Launcher
    job: str
    direct: bool = False
    rank: int | None = None
    size: int | None = None
    local_size: int | None = None
    recorded_pid: int | None = None
    recorded_lives: bool | None = None


class RestFacts(Struct, frozen=True, tag="rest"):
    """What is left here of a job that is not whole: every process of it that lives, on a GPU or not.

    ``ranks`` are the numbers of those that live, ``pids`` their processes. ``idle_s``: for so long all of
    these and whatever they started have used at most a hundredth of a processor, as the scheduler recorded.
    Not observed where one of them may be missing here, or is stopped, traced or frozen.
    """

    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    idle_s: float


class Job(Struct, frozen=True, kw_only=True):
    """What a process was launched as a part of, with all others of the same ``key``.

    ``launcher`` is the launcher's pid while it lives, where that is known; ``is_orphan``: proved, it is dead.
    ``head`` is the pid of the part of the job that started this one, as vLLM's engine starts its workers.
    ``rank``, ``size`` and ``local_size`` are as :class:`LaunchClaim` has them. ``rest`` is there where it was
    proved by what is left: some of its ranks are dead, and the others have done nothing for long.
    """

    by: Launcher
    key: str
    launcher: int | None = None
    head: int | None = None
    is_orphan: bool = False
    rank: int | None = None
    size: int | None = None
    local_size: int | None = None
    rest: RestFacts | None = None


class ProcessFacts(Struct, frozen=True, omit_defaults=True, tag="process"):
    """What /proc says about one process. None means that it could not be read.

    ``state`` and ``exiting`` are its first thread's, or, where that has ended, those of a thread
    that lives on. ``forked`` says that it never executed a program since it was forked: only such a
    process can have a parent's driver files, which close on exec. ``initialised_cuda`` is asked of forked
    processes: True where the driver runs a thread in it, which no fork inherits, so that its files are its
    own. ``executable_trusted`` is asked of programs whose path makes them a part of the system:
    True where root installed the file under that path, False where another user may have put it there.
    ``kill_pending``: SIGKILL was sent, or a thread has ended the whole process, and ``state`` is that of a
    thread that has not taken it yet. ``waits_in`` is the kernel's function that it is in, asked where it is
    in state D or SIGKILL is pending.
    """

    command: str
    argv: tuple[str, ...] = ()
    uid: int | None = None
    user: str | None = None
    executable: str | None = None
    executable_deleted: bool = False
    executable_trusted: bool | None = None
    kernel_thread: bool | None = None
    state: str = "?"
    exiting: bool = False
    forked: bool | None = None
    initialised_cuda: bool | None = None
    parent: int | None = None
    group: int | None = None
    session: int | None = None
    age_s: float | None = None
    namespace_pids: tuple[int, ...] = ()
    cgroup: str | None = None
    workload: Workload = Workload()
    launch: LaunchClaim | None = None
    kill_pending: bool = False
    waits_in: str | None = None

    @property
    def is_dead(self) -> bool:
        """A zombie has closed its files: it holds no memory and never will again."""
        return self.state in ("Z", "X")


class ParkedProcess(Struct, frozen=True, kw_only=True):
    """A process of ours whose GPU memory lies in host memory; ``lent_to`` is the pid of a vram borrow.

    ``asleep``: until it is wanted."""

    pid: int
    user: str | None
    command: str | None
    nbytes: int
    gpus: tuple[int, ...]
    since: str
    lent_to: int | None = None
    asleep: bool = False
    started_at: int | None = None

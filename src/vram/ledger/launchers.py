"""Which processes were launched together, and whose launcher is dead: proved by who has adopted them.

A process whose parent dies is adopted by the first process of its PID namespace, or by one that has asked
the kernel for that, as systemd does for a user's programs. A process that a launcher starts as its direct
child, and whose parent is such a one, has lost its launcher. Where anything is in doubt, the launcher
lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vram.model.process import Job, LaunchClaim, ProcessFacts, ProcessRef

Processes = Mapping[int, tuple[ProcessRef, ProcessFacts]]

# Those that adopt besides the first process of a PID namespace. Container runtimes are none: whoever loses
# its parent in a container is adopted inside, and what they start themselves is a container's first process.
_ADOPTERS = frozenset(("systemd", "slurmstepd", "tini", "dumb-init", "catatonit", "docker-init"))
# A first process that may have launched others itself, as where torchrun is all that a container runs.
_MAY_LAUNCH = (
    "python",
    "pypy",
    "mpirun",
    "mpiexec",
    "prterun",
    "prted",
    "orted",
    "hydra_pmi_proxy",
    "raylet",
)
# These say by their environment which rank of which job they are. There is one process for each rank.
_RANKED = frozenset(("torchrun", "deepspeed", "mpirun", "torch.distributed"))
# A snapshot may claim any ancestry; a real one is this deep only by accident.
_MAX_DEPTH = 8


def find_jobs(processes: Processes) -> dict[int, Job]:
    """The job of each of *processes* that was launched together with others, by pid."""
    members = {
        pid: facts.launch
        for pid, (_, facts) in processes.items()
        if facts.launch is not None and not facts.is_dead
    }
    if not members:
        return {}
    ranks = _ranks(members, processes)
    launched = {pid: launch for pid, launch in members.items() if launch.direct or pid in ranks}
    lost = {
        pid for pid, launch in launched.items() if launch.direct and _has_lost_its_launcher(pid, processes)
    }
    lost -= _impostors(lost, launched, processes)
    return {pid: _job(pid, launched, lost, processes) for pid in launched if _is_rank(pid, launched, ranks)}


def _job(pid: int, launched: Mapping[int, LaunchClaim], lost: set[int], processes: Processes) -> Job:
    """The job of the uppermost process above *pid* that was launched, too."""
    top = pid
    for _ in range(_MAX_DEPTH):
        above = processes[top][1].parent
        # A notebook's programs are its own, and a kernel that one of them starts is another job.
        if top in lost or above is None or above not in launched or launched[top].by == "Jupyter":
            break
        top = above
    launch, (_, facts) = launched[top], processes[top]
    is_orphan = top in lost
    launcher = facts.parent if launch.direct and not is_orphan else None
    own = launched[pid]
    return Job(
        by="multiprocessing" if launch.by == "fork server" else launch.by,
        key=f"{facts.uid}.{launch.job}.{launcher or 0}",
        launcher=launcher,
        is_orphan=is_orphan,
        rank=own.rank,
        size=own.size,
        local_size=own.local_size,
    )


def _ranks(members: Mapping[int, LaunchClaim], processes: Processes) -> set[int]:
    """One process for each rank of each job, the oldest: what it started has inherited its environment."""
    oldest: dict[tuple[object, ...], int] = {}
    for pid, launch in members.items():
        if launch.by in _RANKED:
            key = (processes[pid][1].uid, launch.by, launch.job, launch.rank)
            known = oldest.get(key)
            if known is None or _began(pid, processes) < _began(known, processes):
                oldest[key] = pid
    return set(oldest.values())


def _is_rank(pid: int, launched: Mapping[int, LaunchClaim], ranks: set[int]) -> bool:
    return launched[pid].by not in _RANKED or pid in ranks


def _began(pid: int, processes: Processes) -> tuple[int, int]:
    return processes[pid][0].started_at or 0, pid


def _has_lost_its_launcher(pid: int, processes: Processes) -> bool:
    facts = processes[pid][1]
    launch, parent = facts.launch, processes.get(facts.parent or 0)
    if launch is None or parent is None or _is_first(facts) or launch.recorded_lives:
        return False
    if launch.recorded_pid is not None and launch.recorded_pid == _inner_pid(*parent):
        return False  # its launcher is the first process here
    if launch.by == "multiprocessing" and facts.forked:
        return False  # its fork server has ended, which proves nothing of who had started that
    return is_adopter(*parent)


def is_adopter(process: ProcessRef, facts: ProcessFacts) -> bool:
    """Whether *process* takes in those whose parents died, and cannot have launched them itself."""
    # No user can choose the name of a process of root's, whose program not everybody may read.
    name = facts.command if facts.executable is None and facts.uid == 0 else (facts.executable or "")
    name = name.rpartition("/")[2]
    if facts.is_dead or not name or name.startswith(_MAY_LAUNCH):
        return False
    return process.pid == 1 or _is_first(facts) or name in _ADOPTERS


def _is_first(facts: ProcessFacts) -> bool:
    """Whether it is the first process of its PID namespace: of the machine, or of a container."""
    return facts.namespace_pids[-1:] == (1,)


def _inner_pid(process: ProcessRef, facts: ProcessFacts) -> int:
    return facts.namespace_pids[-1] if facts.namespace_pids else process.pid


def _impostors(lost: Iterable[int], launched: Mapping[int, LaunchClaim], processes: Processes) -> set[int]:
    """Those that say they are ranks of a job of which another rank has its launcher: they are none of it."""
    alive = {
        (processes[pid][1].uid, launch.by, launch.job)
        for pid, launch in launched.items()
        if launch.by in _RANKED and launch.direct and pid not in lost
    }
    return {pid for pid in lost if (processes[pid][1].uid, launched[pid].by, launched[pid].job) in alive}

"""Which processes were launched together, and whose launcher is dead: proved by who has adopted them.

A process whose parent dies is adopted by the first process of its PID namespace, or by one that has asked
the kernel for that, as systemd does for a user's programs. A process that a launcher starts as its direct
child, and whose parent is such a one, has lost its launcher. Where anything is in doubt, the launcher
lives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vram.model.process import Job, LaunchClaim, ProcessFacts, ProcessRef

Processes = Mapping[int, tuple[ProcessRef, ProcessFacts]]

# Those that adopt besides the first process of a PID namespace. Container runtimes are none: whoever loses
# its parent in a container is adopted inside, and what they start themselves is a container's first process.
_ADOPTERS = frozenset(("systemd", "slurmstepd", "tini", "dumb-init", "catatonit", "docker-init"))
# A first process that may have launched others itself, as where torchrun is all that a container runs.
_MAY_LAUNCH = (
    *("python", "pypy", "mpirun", "mpiexec", "prterun", "prted", "orted", "orterun"),
    *("hydra_pmi_proxy", "raylet"),
)
# These say by their environment which rank of which job they are. There is one process for each rank.
_RANKED = frozenset(("torchrun", "deepspeed", "mpirun", "torch.distributed"))
_NEVER = 1 << 63
# A snapshot may claim any ancestry; a real one is this deep only by accident.
_MAX_DEPTH = 8


def find_jobs(processes: Processes) -> dict[int, Job]:
    """The job of each of *processes* that was launched together with others, by pid."""
    members = {
        pid: facts.launch
        for pid, (_, facts) in processes.items()
        if facts.launch is not None
        and not facts.is_dead
        and (facts.launch.direct or facts.launch.by == "torch.distributed")
    }
    if not members:
        return {}
    lost = {pid for pid, claim in members.items() if claim.direct and _has_lost_its_launcher(pid, processes)}
    for impostor in _impostors(members, lost, processes):
        del members[impostor]
        lost.discard(impostor)
    return {pid: _job(pid, members, lost, processes) for pid in members}


def _job(pid: int, members: Mapping[int, LaunchClaim], lost: Collection[int], processes: Processes) -> Job:
    """The job of the uppermost process above *pid* that was launched, too."""
    top = pid
    for _ in range(_MAX_DEPTH):
        above = processes[top][1].parent
        if above is None or above not in members or processes[above][1].uid != processes[top][1].uid:
            break
        # What a notebook starts is the notebook's; a kernel is never a part of another job.
        if top in lost or members[top].by == "Jupyter":
            break
        top = above
    claim, (_, facts), own = members[top], processes[top], members[pid]
    launcher = _living_launcher(facts, processes) if claim.direct and top not in lost else None
    return Job(
        by="multiprocessing" if claim.by == "fork server" else claim.by,
        key=f"{facts.uid}.{claim.job}.{'orphan' if top in lost else launcher or 0}",
        launcher=launcher,
        head=top if top != pid else None,
        is_orphan=top in lost,
        rank=own.rank,
        size=own.size,
        local_size=own.local_size,
    )


def _living_launcher(facts: ProcessFacts, processes: Processes) -> int | None:
    """The parent, where it is a program that launches others; a shell is none, whatever was started in it."""
    parent = processes.get(facts.parent or 0)
    return parent[0].pid if parent is not None and _program(parent[1]).startswith(_MAY_LAUNCH) else None


def _impostors(members: Mapping[int, LaunchClaim], lost: set[int], processes: Processes) -> set[int]:
    """Those that say which rank they are, as whatever a rank starts says too, and are none.

    Nobody below a rank is another one. For each rank that one launcher started, or that lost its launcher,
    there is one process, the oldest. And who has lost its launcher is none where that launcher lives and was
    there before: a job that was started again has another one.
    """
    found: set[int] = set()
    ranks: dict[tuple[_JobName, int | None, int | None], int] = {}
    launched_since: dict[_JobName, int] = {}
    ranked = [pid for pid, claim in members.items() if claim.by in _RANKED]
    for pid in sorted(ranked, key=lambda pid: _began(pid, processes)):
        job, above = _job_name(pid, members, processes), processes[pid][1].parent or 0
        if above in members and _job_name(above, members, processes) == job:
            found.add(pid)
            continue
        has_launcher = members[pid].direct and pid not in lost
        rank = (job, members[pid].rank, above if has_launcher else None)
        if ranks.setdefault(rank, pid) != pid:
            found.add(pid)
        elif has_launcher and above in processes:
            launched_since[job] = min(launched_since.get(job, _NEVER), _began(above, processes)[0])
    for pid in lost - found:
        since = launched_since.get(_job_name(pid, members, processes), _NEVER)
        if since <= _began(pid, processes)[0]:
            found.add(pid)
    return found


_JobName = tuple[int | None, str, str]


def _job_name(pid: int, members: Mapping[int, LaunchClaim], processes: Processes) -> _JobName:
    return processes[pid][1].uid, members[pid].by, members[pid].job


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
    name = _program(facts)
    if facts.is_dead or not name or name.startswith(_MAY_LAUNCH):
        return False
    return process.pid == 1 or _is_first(facts) or name in _ADOPTERS


def _program(facts: ProcessFacts) -> str:
    """The name of its program; "" where it is not known."""
    # No user can choose the name of a process of root's, whose program not everybody may read.
    name = facts.command if facts.executable is None and facts.uid == 0 else (facts.executable or "")
    return name.rpartition("/")[2]


def _is_first(facts: ProcessFacts) -> bool:
    """Whether it is the first process of its PID namespace: of the machine, or of a container."""
    return facts.namespace_pids[-1:] == (1,)


def _inner_pid(process: ProcessRef, facts: ProcessFacts) -> int:
    return facts.namespace_pids[-1] if facts.namespace_pids else process.pid

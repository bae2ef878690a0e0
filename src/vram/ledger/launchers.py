"""Which processes were launched together, and whose launcher is dead: proved by who has adopted them.

A process whose parent dies is adopted by the first process of its PID namespace, or by one that has asked
the kernel for that, as systemd does for a user's programs. A process that a launcher starts as its direct
child, and whose parent is such a one, has lost its launcher.

Who has asked the kernel is not to be seen, so not every adopter is known by name. Where several ranks of one
launcher have a parent that is no launcher, others of them are dead, and all that are left have done nothing
for long, they have lost it too: a launcher that lives ends the rest, or waits for those that work. Where
anything is in doubt, the launcher lives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vram.model.parents import is_adopter, is_first, is_no_launcher, may_launch
from vram.model.process import Job, LaunchClaim, ProcessFacts, ProcessRef, RestFacts

Processes = Mapping[int, tuple[ProcessRef, ProcessFacts]]

# These say by their environment which rank of which job they are. There is one process for each rank.
_RANKED = frozenset(("torchrun", "deepspeed", "mpirun", "torch.distributed"))
_NEVER = 1 << 63
# A launcher that lives ends the rest of a job within seconds, or half a minute where they ignore SIGTERM.
MIN_IDLE_S = 600.0
# One alone may have been started in a shell that has the environment of a rank.
MIN_RANKS_LEFT = 2
# A snapshot may claim any ancestry; a real one is this deep only by accident.
_MAX_DEPTH = 8


def find_jobs(
    processes: Processes, rests: Mapping[int, RestFacts] | None = None, busy: Collection[int] = ()
) -> dict[int, Job]:
    """The job of each of *processes* that was launched together with others, by pid.

    *rests* are what is left of jobs that are not whole, by the pids of their parts. *busy* may work: they are
    on a GPU that does, or were parked, and will go on.
    """
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
    left = _left_behind(members, lost, processes, rests or {}, busy)
    lost |= left.keys()
    return {pid: _job(pid, members, lost, processes, left) for pid in members}


def _left_behind(
    members: Mapping[int, LaunchClaim],
    lost: Collection[int],
    processes: Processes,
    rests: Mapping[int, RestFacts],
    busy: Collection[int],
) -> dict[int, RestFacts]:
    """Those that are left of jobs that are not whole, where nobody is who would end them or start others."""
    jobs: dict[RestFacts, list[int]] = {}
    for pid, rest in rests.items():
        if pid in members and pid not in lost:
            jobs.setdefault(rest, []).append(pid)
    found: dict[int, RestFacts] = {}
    for rest, pids in jobs.items():
        claims = [members[pid] for pid in pids]
        facts = [processes[pid][1] for pid in pids]
        parents = {each.parent or 0 for each in facts}
        parent = processes.get(parents.pop()) if len(parents) == 1 else None
        names = {_job_name(pid, members, processes) for pid in pids}
        sizes = {each.local_size for each in claims}
        living = set(rest.ranks)
        if (
            parent is not None
            and is_no_launcher(parent[1])
            and len(names) == len(sizes) == 1
            and all(each.direct and each.recorded_lives is not True for each in claims)
            and not any(map(is_first, facts))
            and all(each.state == "S" for each in facts)
            and {each.rank for each in claims} <= living
            and len({each.rank for each in claims}) >= MIN_RANKS_LEFT
            and len(living) < (sizes.pop() or 0)
            and rest.idle_s >= MIN_IDLE_S
            and set(rest.pids).isdisjoint(busy)
            and set(pids).isdisjoint(busy)
        ):
            found |= dict.fromkeys(pids, rest)
    return found


def _job(
    pid: int,
    members: Mapping[int, LaunchClaim],
    lost: Collection[int],
    processes: Processes,
    left: Mapping[int, RestFacts],
) -> Job:
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
    # What two shells have started is not one job, although neither of them is a launcher.
    started_by = "orphan" if top in lost else (facts.parent or 0) if claim.direct else 0
    return Job(
        by="multiprocessing" if claim.by == "fork server" else claim.by,
        key=f"{facts.uid}.{claim.job}.{started_by}",
        launcher=launcher,
        head=top if top != pid else None,
        is_orphan=top in lost,
        rank=own.rank,
        size=own.size,
        local_size=own.local_size,
        rest=left.get(top),
    )


def _living_launcher(facts: ProcessFacts, processes: Processes) -> int | None:
    """The parent, where it is a program that launches others; a shell is none, whatever was started in it."""
    parent = processes.get(facts.parent or 0)
    return parent[0].pid if parent is not None and may_launch(parent[1]) else None


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
    if launch is None or parent is None or is_first(facts) or launch.recorded_lives:
        return False
    if launch.recorded_pid is not None and launch.recorded_pid == _inner_pid(*parent):
        return False  # its launcher is the first process here
    if launch.by == "multiprocessing" and facts.forked:
        return False  # its fork server has ended, which proves nothing of who had started that
    return is_adopter(*parent)


def _inner_pid(process: ProcessRef, facts: ProcessFacts) -> int:
    return facts.namespace_pids[-1] if facts.namespace_pids else process.pid

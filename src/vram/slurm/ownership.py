"""Whose a process and a piece of memory is: of which job, and how we know.

The kernel's word comes first; a process's own counts only about itself. A process belongs to a job if it
descends from a running step of that job, or if its control group is that job's. Where Slurm keeps no control
groups, a process that a job started stays in the group of slurmd, and its environment names the job. The
environment is the process's own word, so it selects only processes of the job's own user: a user who forges
it can only harm processes of his own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from vram.host.local.processes import TICKS_PER_S
from vram.host.local.workload import RunningSteps
from vram.host.ports import Host
from vram.ledger.holds import find_holds, in_ledger_order
from vram.ledger.processes import ProcessMemory, is_stopped, living_holders, processes
from vram.model.hold import HeldPart
from vram.model.ledger import Entry, Holder, Ledger
from vram.model.process import ProcessFacts, ProcessRef
from vram.model.slurm import JobClaim, JobHolder, SlurmJob, Whose
from vram.protected import is_login, role
from vram.slurm.jobs import EndedJob

# Below these a user may make control groups, and call them as he likes.
_USERS_OWN = re.compile(r"/user\.slice/|/user@\d+\.service/", re.ASCII)
_UID_IN_PATH = re.compile(r"/uid_(\d+)/job_", re.ASCII)
_UNREAD = ("failed", "timeout", "lost", "denied")
_SEVERITY: tuple[Whose, ...] = ("job", "ended-job", "unknown", "user", "running-job", "other", "system")
"""Where several hold the same bytes, the first of these speaks for all."""


# ---- processes ----


class Node(Struct, frozen=True, kw_only=True):
    """What is known of this node when processes are judged.

    ``own_cgroup`` is ours: slurmd started us, so it is slurmd's, and that of all that jobs start without
    control groups of their own. ``job_ended``: the job that we run for has ended; else it has not begun.
    """

    steps: RunningSteps
    own_cgroup: str | None
    job_ended: bool = True
    ended: Mapping[str, EndedJob] = {}
    cgroup_only: bool = False


def claim(pid: int, facts: ProcessFacts, node: Node) -> JobClaim:
    """The job that a process belongs to, as far as that is known."""
    if running := node.steps.below.get(pid):
        return JobClaim(running, "step")
    path = facts.cgroup or ""
    if facts.workload.slurm_job is not None:
        forged = _USERS_OWN.search(path) is not None
        return JobClaim() if forged else JobClaim(facts.workload.slurm_job, "cgroup")
    # In a group of its own (a login, a service, a container) another program has charge of it.
    if facts.workload.claimed_job is None or facts.cgroup != node.own_cgroup or node.cgroup_only:
        return JobClaim()
    job = str(int(facts.workload.claimed_job))
    # To name a job that runs for another user is no way to hide from one's own job's epilog.
    foreign = job in node.steps.jobs and facts.uid not in node.steps.users.get(job, ())
    return JobClaim() if foreign else JobClaim(job, "environment")


def is_of_ended(facts: ProcessFacts, claimed: JobClaim, job: str, uid: int, node: Node) -> bool:
    """Whether a process is surely left by *job* of user *uid*, no step of which may run here."""
    if claimed.job != job or claimed.by == "step" or job in node.steps.jobs:
        return False
    if claimed.by == "cgroup":
        named = _UID_IN_PATH.search(facts.cgroup or "")
        return named is None or int(named[1]) == uid
    return claimed.by == "environment" and facts.uid == uid and uid != 0


def is_of_job(facts: ProcessFacts, claimed: JobClaim, job: SlurmJob, node: Node) -> bool:
    """Whether a process is left by the job that has just ended.

    slurmctld starts no other run under its number before the epilog is over, and that run would have a step.
    """
    return node.job_ended and is_of_ended(facts, claimed, job.job, job.uid, node)


def is_of_earlier_job(who: ProcessRef, facts: ProcessFacts, claimed: JobClaim, node: Node) -> bool:
    """Whether a process is left by a job whose epilog has run before.

    Whatever was started after that may belong to another run under the same number.
    """
    ended = node.ended.get(claimed.job or "")
    if ended is None or who.started_at is None or who.started_at / TICKS_PER_S > ended.ended_s:
        return False
    return is_of_ended(facts, claimed, ended.job, ended.uid, node)


# ---- what is held on some GPUs ----


class Judged(Struct, frozen=True, kw_only=True):
    """One process on the GPUs in question, and whose it is."""

    memory: ProcessMemory
    whose: Whose
    claim: JobClaim
    command: str


class Inventory(Struct, frozen=True, kw_only=True):
    """All that is held on ``gpus``; ``unread`` says which of them could not be read, and why."""

    gpus: tuple[int, ...]
    processes: dict[int, Judged]
    held: tuple[JobHolder, ...]
    unread: tuple[str, ...]
    free_bytes: dict[int, int]

    def of(self, *whose: Whose) -> tuple[JobHolder, ...]:
        """The pieces that belong to these."""
        return tuple(each for each in self.held if each.whose in whose)

    def mps_client_beside(self, judged: Judged) -> int | None:
        """The pid of another owner's MPS client that may share a server with *judged*, if there is one."""
        if not judged.memory.uses_mps:
            return None
        servers = _mps_servers(judged)
        for other in self.processes.values():
            if not other.memory.uses_mps or other.whose in ("job", "ended-job", "system"):
                continue
            theirs = _mps_servers(other)
            if not servers or not theirs or servers & theirs:
                return other.memory.pid
        return None


def take(host: Host, ledger: Ledger, gpus: tuple[int, ...], job: SlurmJob | None, node: Node) -> Inventory:
    """Judge every process that holds memory on *gpus*."""
    wanted = [gpu for gpu in ledger.gpus if gpu.index in gpus]
    held = (part for part in in_ledger_order(find_holds(ledger)) if part.gpu in gpus)
    here = {
        pid: judged
        for pid, memory in processes(ledger).items()
        if set(memory.gpus) & set(gpus) and (judged := _judge(host, memory, job, node)) is not None
    }
    return Inventory(
        gpus=gpus,
        processes=here,
        held=tuple(pieces(held, here)),
        unread=tuple(
            f"GPU {gpu.index} did not answer: {gpu.message or gpu.status}"
            for gpu in wanted
            if gpu.total_bytes is None or gpu.status in _UNREAD
        ),
        free_bytes={gpu.index: gpu.memory.free for gpu in wanted if gpu.memory is not None},
    )


def _mps_servers(judged: Judged) -> set[int]:
    return {entry.mps_server for entry in judged.memory.charged if entry.mps_server is not None}


def _judge(host: Host, memory: ProcessMemory, job: SlurmJob | None, node: Node) -> Judged | None:
    """None where it has ended, or its pid is another's since the ledger was read."""
    found = host.proc.facts(memory.pid)
    if found is None or found[0].started_at != memory.holder.started_at:
        return None
    who, facts = found
    claimed = claim(memory.pid, facts, node)
    return Judged(
        memory=memory,
        whose=_whose(who, facts, claimed, job, node),
        claim=claimed,
        command=" ".join(facts.argv) or facts.command,
    )


def _whose(
    who: ProcessRef, facts: ProcessFacts, claimed: JobClaim, job: SlurmJob | None, node: Node
) -> Whose:
    if claimed.by == "step" or claimed.job in node.steps.jobs:
        return "running-job"
    if role(who.pid, facts):
        return "system"
    if job is not None and is_of_job(facts, claimed, job, node):
        return "job"
    if is_of_earlier_job(who, facts, claimed, node):
        return "ended-job"
    if claimed.job is not None and (job is None or claimed.job != job.job):
        # No step of that job is seen. It may have ended, unseen by an epilog here. A process that is not
        # of the job's user is not of the job, whatever he says.
        return "unknown" if job is None or facts.uid == job.uid else "other"
    return "user" if job is not None and facts.uid == job.uid else "other"


def is_of(host: Host, pid: int, whose: Whose, job: SlurmJob | None, node: Node) -> bool:
    """Judge one process again, right now: whether the answer is still *whose*."""
    found = host.proc.facts(pid)
    return found is not None and _whose(*found, claim(pid, found[1], node), job, node) == whose


class LeftProcesses:
    """Which processes are surely *whose*, holding memory or not, as of one moment.

    None below a login, or below another process of the user: a shell has its own reasons to start things,
    whatever its environment says. So all above must be *whose* too, up to a process of root.
    """

    def __init__(self, host: Host, whose: Whose, job: SlurmJob | None, node: Node) -> None:
        self._host, self._whose, self._job, self.node = host, whose, job, node
        self._known: dict[int, tuple[JobClaim | None, ProcessFacts | None]] = {}

    def claim(self, pid: int) -> JobClaim | None:
        """The job that *pid* surely belongs to, and how that is known; None where it is not sure."""
        claimed, facts = self._judge(pid)
        return claimed if facts is not None and self._is_below_the_same(facts) else None

    def _judge(self, pid: int) -> tuple[JobClaim | None, ProcessFacts | None]:
        if pid not in self._known:
            found = self._host.proc.facts(pid)
            claimed = claim(pid, found[1], self.node) if found else None
            if found and claimed and _whose(*found, claimed, self._job, self.node) != self._whose:
                claimed = None
            self._known[pid] = claimed, found[1] if found else None
        return self._known[pid]

    def _is_below_the_same(self, facts: ProcessFacts) -> bool:
        parent = facts.parent
        while parent is not None:
            claimed, above = self._judge(parent)
            if above is None:
                return False  # it has just ended, and the next reading knows whose child this is now
            if above.uid == 0:
                return not is_login(above)
            if claimed is None:
                return False
            parent = above.parent
        return False


def pieces(held: Iterable[HeldPart], known: dict[int, Judged]) -> Iterator[JobHolder]:
    """Whose each part of what is *held* is; where several hold it, the gravest answer speaks for all."""
    for part in held:
        entry = part.entry
        if entry.hidden_by == "end":
            continue
        people = living_holders(entry)
        judged = [known[holder.pid] for holder in people if holder.pid in known]
        if judged:
            yield _piece(part, min(judged, key=lambda each: _SEVERITY.index(each.whose)))
        elif not people:
            yield JobHolder(
                gpu=part.gpu,
                nbytes=entry.nbytes,
                pid=None,
                user=None,
                command=None,
                whose="unknown",
                note=_describe_ownerless(entry),
            )


def _piece(part: HeldPart, judged: Judged) -> JobHolder:
    holder = judged.memory.holder
    return JobHolder(
        gpu=part.gpu,
        nbytes=part.entry.nbytes,
        pid=holder.pid,
        user=holder.user,
        command=judged.command,
        whose=judged.whose,
        job_of_process=judged.claim.job,
        by=judged.claim.by,
        note=_state(holder),
    )


def _describe_ownerless(entry: Entry) -> str:
    if entry.kind == "orphaned":
        return f"memory of dead pid {entry.charged_pid}; its holder is not visible"
    return "no visible process holds it"


def _state(holder: Holder) -> str:
    if holder.exiting:
        return "it is exiting"
    if holder.state == "D":
        return "it is waiting in the kernel (state D); signals have no effect now"
    return "it is stopped" if is_stopped(holder) else ""

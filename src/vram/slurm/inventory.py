"""What is held on some GPUs, and whose each piece is: the ledger, seen by Slurm job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from vram.diagnosis.held import is_stopped
from vram.host.ports import Host
from vram.ledger.processes import ProcessMemory, living_holders, processes
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.process import ProcessFacts, ProcessRef
from vram.model.slurm import JobClaim, JobHolder, SlurmJob, Whose
from vram.protected import is_login, role
from vram.slurm.ownership import Node, claim, is_of_earlier_job, is_of_job

_UNREAD = ("failed", "timeout", "lost", "denied")
_SEVERITY: tuple[Whose, ...] = ("job", "ended-job", "unknown", "user", "running-job", "other", "system")
"""Where several hold the same bytes, the first of these speaks for all."""

Facts = Callable[[int], tuple[ProcessRef, ProcessFacts] | None]


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
        """The pid of somebody else's MPS client that may share a server with *judged*, if there is one."""
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
    """Judge everybody who holds memory on *gpus*."""
    wanted = [gpu for gpu in ledger.gpus if gpu.index in gpus]
    judge = _Judge(host.proc.facts, job, node)
    here = {
        pid: judged
        for pid, memory in processes(ledger).items()
        if set(memory.gpus) & set(gpus) and (judged := judge.process(memory)) is not None
    }
    return Inventory(
        gpus=gpus,
        processes=here,
        held=tuple(piece for gpu in wanted for piece in _pieces(gpu, here)),
        unread=tuple(_unread(gpu) for gpu in wanted if gpu.total_bytes is None or gpu.status in _UNREAD),
        free_bytes={gpu.index: gpu.memory.free for gpu in wanted if gpu.memory is not None},
    )


def _mps_servers(judged: Judged) -> set[int]:
    return {entry.mps_server for entry in judged.memory.charged if entry.mps_server is not None}


class _Judge:
    def __init__(self, facts: Facts, job: SlurmJob | None, node: Node) -> None:
        self._facts, self._job, self._node = facts, job, node

    def process(self, memory: ProcessMemory) -> Judged | None:
        """None where it has ended, or its pid is another's since the ledger was read."""
        found = self._facts(memory.pid)
        if found is None or found[0].started_at != memory.holder.started_at:
            return None
        who, facts = found
        claimed = claim(memory.pid, facts, self._node)
        return Judged(
            memory=memory,
            whose=self.whose(who, facts, claimed),
            claim=claimed,
            command=" ".join(facts.argv) or facts.command,
        )

    def whose(self, who: ProcessRef, facts: ProcessFacts, claimed: JobClaim) -> Whose:
        job, node = self._job, self._node
        if claimed.by == "step" or claimed.job in node.steps.jobs:
            return "running-job"
        if role(who.pid, facts):
            return "system"
        if job is not None and is_of_job(facts, claimed, job, node):
            return "job"
        if is_of_earlier_job(who, facts, claimed, node):
            return "ended-job"
        if claimed.job is not None and (job is None or claimed.job != job.job):
            # No step of that job is seen. It may have ended, and nobody here has seen that either. Who is not
            # of the job's user is not of the job, whatever he says.
            return "unknown" if job is None or facts.uid == job.uid else "other"
        return "user" if job is not None and facts.uid == job.uid else "other"


def is_of(host: Host, pid: int, whose: Whose, job: SlurmJob | None, node: Node) -> ProcessFacts | None:
    """Judge one process again, right now; its facts where the answer is still *whose*."""
    found = host.proc.facts(pid)
    if found is None:
        return None
    who, facts = found
    answer = _Judge(host.proc.facts, job, node).whose(who, facts, claim(pid, facts, node))
    return facts if answer == whose else None


class LeftProcesses:
    """Which processes are surely *whose*, holding memory or not, as of one moment.

    None below a login, or below another process of the user: a shell has its own reasons to start things,
    whatever its environment says. So everybody above must be *whose* too, up to a process of root.
    """

    def __init__(self, host: Host, whose: Whose, job: SlurmJob | None, node: Node) -> None:
        self._facts, self._whose, self.node = host.proc.facts, whose, node
        self._judge = _Judge(host.proc.facts, job, node)
        self._known: dict[int, tuple[JobClaim | None, ProcessFacts | None]] = {}

    def claim(self, pid: int) -> JobClaim | None:
        """The job that *pid* surely belongs to, and how that is known; None where it is not sure."""
        claimed, facts = self._judged(pid)
        return claimed if facts is not None and self._is_below_the_same(facts) else None

    def _judged(self, pid: int) -> tuple[JobClaim | None, ProcessFacts | None]:
        if pid not in self._known:
            found = self._facts(pid)
            claimed = claim(pid, found[1], self.node) if found else None
            if found and claimed and self._judge.whose(*found, claimed) != self._whose:
                claimed = None
            self._known[pid] = claimed, found[1] if found else None
        return self._known[pid]

    def _is_below_the_same(self, facts: ProcessFacts) -> bool:
        parent = facts.parent
        while parent is not None:
            claimed, above = self._judged(parent)
            if above is None:
                return False  # it has just ended, and the next reading knows whose child this is now
            if above.uid == 0:
                return not is_login(above)
            if claimed is None:
                return False
            parent = above.parent
        return False


def _pieces(gpu: GpuLedger, known: dict[int, Judged]) -> Iterator[JobHolder]:
    for entry in gpu.accounted:
        if not entry.kind_facts.held or entry.nbytes == 0 or entry.hidden_by == "end":
            continue
        people = living_holders(entry) or tuple(each for each in entry.co_holders if each.alive)
        judged = [known[holder.pid] for holder in people if holder.pid in known]
        if judged:
            yield _piece(gpu, entry, min(judged, key=lambda each: _SEVERITY.index(each.whose)))
        elif not people:
            yield JobHolder(
                gpu=gpu.index,
                nbytes=entry.nbytes,
                pid=None,
                user=None,
                command=None,
                whose="unknown",
                note=_nobody(entry),
            )


def _piece(gpu: GpuLedger, entry: Entry, judged: Judged) -> JobHolder:
    holder = judged.memory.holder
    return JobHolder(
        gpu=gpu.index,
        nbytes=entry.nbytes,
        pid=holder.pid,
        user=holder.user,
        command=judged.command,
        whose=judged.whose,
        job_of_process=judged.claim.job,
        by=judged.claim.by,
        note=_state(holder),
    )


def _nobody(entry: Entry) -> str:
    if entry.kind == "orphaned":
        return f"memory of dead pid {entry.charged_pid}; its holder is not visible"
    return "no visible process holds it"


def _state(holder: Holder) -> str:
    if holder.exiting:
        return "it is exiting"
    if holder.state == "D":
        return "it is waiting in the kernel (state D); signals have no effect now"
    return "it is stopped" if is_stopped(holder) else ""


def _unread(gpu: GpuLedger) -> str:
    return f"GPU {gpu.index} did not answer: {gpu.message or gpu.status}"

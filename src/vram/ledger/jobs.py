"""Holds become jobs: what processes hold that were launched together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vram.ledger.holds import find_holds
from vram.model.hold import Hold
from vram.model.ledger import Holder, Ledger
from vram.model.process import Job


class HeldByJob(Struct, frozen=True):
    """One job, and what each of its processes on a GPU holds, in the order of their ranks and pids."""

    job: Job
    holds: tuple[Hold, ...]

    @property
    def holders(self) -> tuple[Holder, ...]:
        return tuple(hold.holders[0] for hold in self.holds)

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(each.pid for each in self.holders)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(sorted({gpu for hold in self.holds for gpu in hold.gpus}))

    @property
    def known_bytes(self) -> int:
        return sum(hold.known_bytes for hold in self.holds)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that ought to be on this machine, and hold nothing here; empty where that is not known."""
        if self.job.size is None or self.job.local_size != self.job.size:
            return ()
        there = {each.job.rank for each in self.holders if each.job is not None}
        return tuple(rank for rank in range(min(self.job.size, _MAX_RANKS)) if rank not in there)


# What a process says of its job's size is its own word.
_MAX_RANKS = 1024


def starters(held: HeldByJob) -> tuple[int, ...]:
    """Who would start the job's processes again, in the order in which they are to be ended.

    The launcher, where it lives and exists for this job alone; and parts of the job that started others.
    """
    launcher = None if has_shared_launcher(held.job) else held.job.launcher
    heads = (each.job.head for each in held.holders if each.job is not None)
    return tuple(dict.fromkeys(pid for pid in (launcher, *heads) if pid is not None))


def has_shared_launcher(job: Job) -> bool:
    """Whether what its launcher starts need not have anything to do with each other."""
    return job.by in _SHARED_LAUNCHERS


# Jupyter's server and Ray's raylet start many that have nothing to do with each other.
_SHARED_LAUNCHERS = ("Jupyter", "Ray")


def find_held_jobs(ledger: Ledger) -> Iterator[HeldByJob]:
    """Every job with processes that hold memory of their own, the one that holds most first."""
    jobs = by_job(find_holds(ledger, empty=True))
    yield from sorted(jobs, key=lambda each: (-each.known_bytes, each.pids))


def by_job(holds: Iterable[Hold]) -> list[HeldByJob]:
    """Those of *holds* that are a job's process's own, by job."""
    found: dict[str, list[Hold]] = {}
    for hold in holds:
        if hold.what == "process" and hold.holders[0].job is not None:
            found.setdefault(hold.holders[0].job.key, []).append(hold)
    return [_made(each) for each in found.values()]


def job_of(ledger: Ledger, pid: int) -> HeldByJob | None:
    """The job that *pid* is a part of, or that it is the living launcher of."""
    for each in find_held_jobs(ledger):
        if pid in each.pids or pid == each.job.launcher:
            return each
    return None


def _made(holds: list[Hold]) -> HeldByJob:
    def place(hold: Hold) -> tuple[int, int]:
        holder = hold.holders[0]
        rank = holder.job.rank if holder.job else None
        return (-1 if rank is None else rank), holder.pid

    ordered = tuple(sorted(holds, key=place))
    job = ordered[0].holders[0].job
    assert job is not None
    return HeldByJob(job, ordered)

"""What the processes of a job still do, for the user who is asked whether to end it: CPU time, busy GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vram.host.ports import Host
from vram.ledger.jobs import HeldByJob, find_held_jobs
from vram.model.hold import Identity
from vram.model.ledger import Ledger
from vram.model.plan import JobActivity

OVER_S = 1.0


def measure_jobs(host: Host, ledger: Ledger, ended: Iterable[int]) -> tuple[JobActivity, ...]:
    """Watch every job that has a process among *ended*, all at once; where there is one, for a second."""
    pids = set(ended)
    jobs = [job for job in find_held_jobs(ledger) if pids.intersection(job.pids)]
    if not jobs:
        return ()
    before = _cpu_times(host, jobs)
    host.clock.sleep(OVER_S)
    after = _cpu_times(host, jobs)
    busy = {gpu.index: gpu.facts.utilization if gpu.facts else None for gpu in ledger.gpus}
    return tuple(
        JobActivity(
            job=each.job,
            pids=each.pids,
            cpu_s=_used(each.pids, before, after),
            gpu_percent={gpu: busy[gpu] for gpu in each.gpus},
        )
        for each in jobs
    )


def _cpu_times(host: Host, jobs: Iterable[HeldByJob]) -> dict[Identity, float]:
    found = {pid: host.proc.condition(pid) for job in jobs for pid in job.pids}
    return {(pid, each.started_at): each.cpu_s for pid, each in found.items() if each is not None}


def _used(
    pids: tuple[int, ...], before: Mapping[Identity, float], after: Mapping[Identity, float]
) -> float | None:
    """What *pids* have used in between; None where none of them lived that long."""
    own = [after[each] - before[each] for each in after if each in before and each[0] in pids]
    return sum(own) if own else None

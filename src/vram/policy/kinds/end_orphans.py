"""end-orphans: end what is left of a job whose launcher is dead, all of it, once it has long been idle."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from vram.diagnosis import words
from vram.ledger.jobs import HeldByJob, find_held_jobs, starters
from vram.ledger.processes import ProcessMemory, is_healthy, processes
from vram.model.ledger import Ledger
from vram.policy.subjects import PEOPLE, PolicyKind, Situation, Subject, evidence_of, pids_of
from vram.reclaim.candidates import ORPHAN
from vram.units import size


def _orphaned(situation: Situation) -> Iterator[Subject]:
    """Every job whose launcher is dead, if all that is left of it may be ended; idle or not."""
    ledger = situation.ledger
    known = processes(ledger)
    for job in find_held_jobs(ledger):
        members = [known[pid] for pid in job.pids if pid in known]
        may_end = len(members) == len(job.pids) and all(_may_be_ended(each, job.pids) for each in members)
        is_own = not {*job.pids, *starters(job)}.isdisjoint(situation.own_pids)
        if job.is_orphan and may_end and not is_own and _is_ours(ledger, job):
            yield _of_job(job, members, situation)


def _may_be_ended(member: ProcessMemory, job: Collection[int]) -> bool:
    """Whether no process outside of *job* is harmed where *member* ends, and nothing about it is in doubt."""
    return (
        is_healthy(member.holder)
        and member.holder.started_at is not None
        and member.protected is None
        and member.certain
        and not member.uses_mps
        and set(member.co_holders) <= set(job)
    )


def _is_ours(ledger: Ledger, job: HeldByJob) -> bool:
    return ledger.host.uid == 0 or all(each.user == ledger.host.user for each in job.holders)


def _of_job(job: HeldByJob, members: list[ProcessMemory], situation: Situation) -> Subject:
    people = job.holders
    what = words.members(job.job, len(people))
    entries = [entry for hold in job.holds for entry in hold.entries]
    return Subject(
        key=situation.jobs.of(job),
        what=f"{size(job.known_bytes)} held by {what}, launcher dead: pid {pids_of(people)}",
        gpus=job.gpus,
        nbytes=job.known_bytes,
        code=ORPHAN,
        holders=people,
        evidence=(*words.orphan_evidence(job), *evidence_of(entries)),
        works=not all(each.idle for each in members),
    )


KIND = PolicyKind(
    name="end-orphans",
    action="end",
    after_s=3600.0,
    keys=("grace", "idle", "notice", "notify"),
    match_keys=PEOPLE,
    preview="end, when it has been idle for long enough,",
    find=_orphaned,
    only_idle=True,
    gives_notice=True,
    spares_system_users=True,
)

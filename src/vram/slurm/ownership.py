"""Whose a process is: of which job, and how we know. The kernel's word first; its own only about itself.

A process belongs to a job if it descends from a running step of that job, or if its control group is that
job's. Where Slurm keeps no control groups, a process that a job started stays in the group of slurmd, and its
environment names the job. The environment is the process's own word, so it selects only processes of the
job's own user: whoever forges it can but harm himself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from vram.host.local.processes import TICKS_PER_S
from vram.host.local.slurm_steps import RunningSteps
from vram.model.process import ProcessFacts, ProcessRef
from vram.model.slurm import JobClaim, SlurmJob
from vram.slurm.ended_jobs import EndedJob

# Below these a user may make control groups, and call them as he likes.
_USERS_OWN = re.compile(r"/user\.slice/|/user@\d+\.service/", re.ASCII)
_UID_IN_PATH = re.compile(r"/uid_(\d+)/job_", re.ASCII)


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
    """The job that a process belongs to, as far as anybody can tell."""
    if running := node.steps.below.get(pid):
        return JobClaim(running, "step")
    path = facts.cgroup or ""
    if facts.workload.slurm_job is not None:
        forged = _USERS_OWN.search(path) is not None
        return JobClaim() if forged else JobClaim(facts.workload.slurm_job, "cgroup")
    # In a group of its own (a login, a service, a container) somebody else has charge of it.
    if facts.workload.claimed_job is None or facts.cgroup != node.own_cgroup or node.cgroup_only:
        return JobClaim()
    job = str(int(facts.workload.claimed_job))
    # To name a job that runs for somebody else is no way to hide from one's own job's epilog.
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

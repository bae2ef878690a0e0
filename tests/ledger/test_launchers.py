"""Who is an orphan, among made-up processes: only what a launcher started itself, and what that started."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vram.ledger.launchers import find_jobs, is_adopter
from vram.model.process import Job, LaunchClaim, ProcessFacts, ProcessRef

Processes = dict[int, tuple[ProcessRef, ProcessFacts]]

RANKED = ("torchrun", "deepspeed", "mpirun", "torch.distributed")
PROGRAMS = ("/usr/bin/python3", "/usr/bin/bash", "/usr/lib/systemd/systemd", "/usr/bin/tini", None)

claims = st.builds(
    LaunchClaim,
    by=st.sampled_from((*RANKED, "multiprocessing", "fork server", "vLLM", "Jupyter")),
    job=st.sampled_from(("a", "b")),
    direct=st.booleans(),
    rank=st.integers(0, 2),
    recorded_pid=st.none() | st.integers(1, 12),
    recorded_lives=st.none() | st.booleans(),
)


@st.composite
def machines(draw: st.DrawFn) -> Processes:
    """Up to twelve processes; any may be the parent of any, as a snapshot may claim."""
    found: Processes = {}
    for pid in range(1, draw(st.integers(2, 12)) + 1):
        claim = draw(st.none() | claims)
        if claim is not None and claim.by == "torch.distributed":
            claim = replace(claim, direct=False)
        if claim is not None:
            claim = replace(claim, job=f"{claim.by}.{claim.job}")
        facts = ProcessFacts(
            command="x",
            uid=draw(st.sampled_from((0, 1000, 1001))),
            executable=draw(st.sampled_from(PROGRAMS)),
            state=draw(st.sampled_from("SSSSZ")),
            forked=draw(st.booleans()),
            parent=draw(st.none() | st.integers(0, 12)),
            namespace_pids=draw(st.sampled_from(((), (pid,), (pid, 1), (pid, 7)))),
            launch=claim,
        )
        found[pid] = (ProcessRef(pid, draw(st.integers(0, 5))), facts)
    return found


def started_by(pid: int, jobs: Mapping[int, Job], processes: Processes) -> bool:
    """Whether going up from *pid*, through members alone, leads to one that an adopter has taken in."""
    for _ in range(len(processes)):
        claim, parent = processes[pid][1].launch, processes[pid][1].parent or 0
        assert claim is not None
        if claim.direct and parent in processes and is_adopter(*processes[parent]):
            return True
        if parent not in jobs:
            return False
        pid = parent
    return False


@given(machines())
def test_an_orphan_was_adopted_or_is_below_one_that_was(processes: Processes) -> None:
    jobs = find_jobs(processes)
    for pid, job in jobs.items():
        facts = processes[pid][1]
        assert facts.launch is not None
        assert not facts.is_dead
        assert facts.launch.direct or facts.launch.by == "torch.distributed"
        if job.is_orphan:
            assert job.launcher is None
            assert started_by(pid, jobs, processes)


@given(machines())
def test_an_adopter_is_the_first_process_or_one_that_is_known_to_adopt(processes: Processes) -> None:
    for process, facts in processes.values():
        if is_adopter(process, facts):
            assert not facts.is_dead
            assert not (facts.executable or "").endswith("python3")
            first = process.pid == 1 or facts.namespace_pids[-1:] == (1,)
            assert first or (facts.executable or "").endswith(("systemd", "tini"))


@given(machines())
def test_a_job_is_of_one_user_and_has_one_process_for_each_rank(processes: Processes) -> None:
    jobs = find_jobs(processes)
    ranks: set[tuple[str, int | None]] = set()
    for pid, job in jobs.items():
        claim = processes[pid][1].launch
        if claim is not None and claim.by in RANKED and job.head is None:
            assert (job.key, job.rank) not in ranks
            ranks.add((job.key, job.rank))
        assert job.key.startswith(f"{processes[pid][1].uid}.")


@given(machines())
def test_who_is_the_first_of_a_container_is_no_orphan_by_itself(processes: Processes) -> None:
    for pid, job in find_jobs(processes).items():
        if processes[pid][1].namespace_pids[-1:] == (1,) and job.head is None:
            assert not job.is_orphan


@given(machines())
def test_a_launcher_that_was_recorded_and_lives_makes_no_orphans(processes: Processes) -> None:
    for pid, job in find_jobs(processes).items():
        claim = processes[pid][1].launch
        if claim is not None and claim.recorded_lives and job.head is None:
            assert not job.is_orphan


def test_a_shell_is_no_launcher() -> None:
    """A rank's environment was left in it, and what is started there looks like a rank."""
    claim = LaunchClaim("torchrun", "torchrun.a", direct=True, rank=0)
    started = ProcessFacts(command="python", uid=1000, executable="/usr/bin/python3", parent=7, launch=claim)
    for program, launcher in (("/usr/bin/bash", None), ("/usr/bin/python3.12", 7)):
        parent = ProcessFacts(command="x", uid=1000, executable=program, parent=1)
        jobs = find_jobs({7: (ProcessRef(7, 1), parent), 8: (ProcessRef(8, 2), started)})
        assert (jobs[8].launcher, jobs[8].is_orphan) == (launcher, False)

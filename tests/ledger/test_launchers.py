"""Who is an orphan, among made-up processes: only what a launcher started itself, and what that started."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from vram.ledger.launchers import MIN_IDLE_S, MIN_RANKS_LEFT, find_jobs
from vram.model.parents import is_adopter, is_no_launcher
from vram.model.process import Job, LaunchClaim, ProcessFacts, ProcessRef, RestFacts

Processes = dict[int, tuple[ProcessRef, ProcessFacts]]

RANKED = ("torchrun", "deepspeed", "mpirun", "torch.distributed")
PROGRAMS = (
    *("/usr/bin/python3", "/usr/bin/bash", "/usr/lib/systemd/systemd", "/usr/bin/tini", "/usr/bin/supervise"),
    None,
)

claims = st.builds(
    LaunchClaim,
    by=st.sampled_from((*RANKED, "multiprocessing", "fork server", "vLLM", "Jupyter")),
    job=st.sampled_from(("a", "b")),
    direct=st.booleans(),
    rank=st.integers(0, 2),
    local_size=st.none() | st.integers(0, 4),
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


rests = st.builds(
    RestFacts,
    ranks=st.lists(st.integers(0, 3), unique=True).map(lambda each: tuple(sorted(each))),
    pids=st.lists(st.integers(1, 12), unique=True).map(lambda each: tuple(sorted(each))),
    idle_s=st.sampled_from((0.0, 599.9, 600.0, 1e6)),
)


@st.composite
def jobs_not_whole(draw: st.DrawFn) -> tuple[Processes, dict[int, RestFacts], set[int]]:
    """Machines with a job of four that may have lost ranks, of which one thing or another is otherwise."""
    processes = draw(machines())
    parent = draw(st.integers(1, 3))
    processes.setdefault(parent, (ProcessRef(parent, 0), ProcessFacts(command="x")))
    if draw(st.booleans()):
        adopter = ProcessFacts(
            command="supervise", uid=0, executable="/usr/bin/supervise", state="S", parent=0
        )
        processes[parent] = (ProcessRef(parent, 0), adopter)
    pids = draw(st.sampled_from(((20,), (20, 22), (21, 20, 25), (20, 21, 22, 23))))
    odd = draw(st.sampled_from((None, *pids)))
    for rank, pid in enumerate(pids):
        claim = LaunchClaim("torchrun", "torchrun.a", direct=True, rank=rank, size=4, local_size=4)
        facts = ProcessFacts(
            command="python", uid=1000, executable="/usr/bin/python3", state="S", parent=parent, launch=claim
        )
        if pid == odd:
            facts = replace(facts, launch=replace(claim, **draw(st.sampled_from(({}, *OTHERWISE_LAUNCHED)))))
            facts = replace(facts, **draw(st.sampled_from(({}, *OTHERWISE))))
        processes[pid] = (ProcessRef(pid, draw(st.integers(1, 3))), facts)
    true = RestFacts(tuple(range(len(pids))), tuple(sorted(pids)), 1000.0)
    rest = draw(st.sampled_from((true, true, replace(true, idle_s=599.0), replace(true, ranks=(0, 1, 2, 3)))))
    known = dict.fromkeys(pids, rest) | draw(st.dictionaries(st.integers(1, 12), rests, max_size=3))
    return processes, known, draw(st.sets(st.integers(1, 25), max_size=2))


OTHERWISE_LAUNCHED = (
    *({"direct": False}, {"local_size": None}, {"local_size": 2}, {"recorded_lives": True}, {"rank": 3}),
    *({"job": "torchrun.b"}, {"by": "deepspeed"}),
)
OTHERWISE = (
    *({"state": "R"}, {"state": "T"}, {"state": "t"}, {"state": "D"}, {"state": "Z"}, {"uid": 1001}),
    *({"parent": None}, {"parent": 12}, {"namespace_pids": (20, 1)}, {"launch": None}),
)


@given(jobs_not_whole())
def test_what_is_left_of_a_job_is_an_orphan_only_where_nothing_speaks_against_it(
    made: tuple[Processes, dict[int, RestFacts], set[int]],
) -> None:
    processes, known, busy = made
    jobs = find_jobs(processes, known, busy)
    by_rest = {pid: job for pid, job in jobs.items() if job.rest is not None}
    for pid, job in by_rest.items():
        assert job.is_orphan
        assert job.rest is not None
        top = job.head or pid
        facts = processes[top][1]
        claim, parent = facts.launch, processes[facts.parent or 0]
        assert claim is not None
        assert (claim.direct, facts.state, claim.recorded_lives or False) == (True, "S", False)
        assert facts.namespace_pids[-1:] != (1,)
        assert is_no_launcher(parent[1])
        assert not is_adopter(*parent)
        assert claim.rank in job.rest.ranks
        assert len(job.rest.ranks) < (claim.local_size or 0)
        assert job.rest.idle_s >= MIN_IDLE_S
        assert not busy & {top, *job.rest.pids}
    for rest in {job.rest for job in by_rest.values()}:
        left = {pid for pid, job in by_rest.items() if job.rest == rest and job.head is None}
        assert len({jobs[pid].rank for pid in left}) >= MIN_RANKS_LEFT
        assert len({(processes[pid][1].uid, processes[pid][1].parent) for pid in left}) == 1
    # And nobody else's state depends on what is known of them.
    alone = find_jobs(processes)
    for pid, job in jobs.items():
        if job.rest is None:
            assert job == alone[pid]


def test_what_is_left_of_a_job_is_found() -> None:
    """The property above holds where nobody is ever an orphan: here two are."""
    adopter = ProcessFacts(command="supervise", uid=0, executable="/usr/bin/supervise", state="S", parent=1)
    processes: Processes = {5: (ProcessRef(5, 1), adopter)}
    for rank, pid in ((0, 7), (2, 8)):
        claim = LaunchClaim("torchrun", "torchrun.a", direct=True, rank=rank, size=8, local_size=4)
        facts = ProcessFacts(
            command="x", uid=1, executable="/usr/bin/python3", state="S", parent=5, launch=claim
        )
        processes[pid] = (ProcessRef(pid, 2), facts)
    rest = RestFacts((0, 2), (7, 8), 600.0)
    found = find_jobs(processes, dict.fromkeys((7, 8), rest))
    assert [found[pid].is_orphan for pid in (7, 8)] == [True, True]
    assert found[7].key == found[8].key
    assert not any(each.is_orphan for each in find_jobs(processes).values())


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


def test_what_two_shells_started_is_not_one_job() -> None:
    """Both have the environment of the same rank; `kill --job` of one is not about the other."""
    claim = LaunchClaim("deepspeed", "deepspeed.a", direct=True, rank=0)
    processes: Processes = {}
    for shell, pid in ((5, 7), (6, 8)):
        facts = ProcessFacts(command="x", uid=1, executable="/usr/bin/python3", parent=shell, launch=claim)
        processes[shell] = (ProcessRef(shell, 1), ProcessFacts(command="x", uid=1, executable="/bin/bash"))
        processes[pid] = (ProcessRef(pid, 2), facts)
    jobs = find_jobs(processes)
    assert jobs[7].key != jobs[8].key


def test_a_shell_is_no_launcher() -> None:
    """A rank's environment was left in it, and what is started there looks like a rank."""
    claim = LaunchClaim("torchrun", "torchrun.a", direct=True, rank=0)
    started = ProcessFacts(command="python", uid=1000, executable="/usr/bin/python3", parent=7, launch=claim)
    for program, launcher in (("/usr/bin/bash", None), ("/usr/bin/python3.12", 7)):
        parent = ProcessFacts(command="x", uid=1000, executable=program, parent=1)
        jobs = find_jobs({7: (ProcessRef(7, 1), parent), 8: (ProcessRef(8, 2), started)})
        assert (jobs[8].launcher, jobs[8].is_orphan) == (launcher, False)

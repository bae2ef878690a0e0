"""An orphaned job is ended as the plan has it, all of it or nothing, whatever changes meanwhile."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S, until
from tests.serve.jobs import SpawnedJob
from tests.serve.spawner import ALLOCATE
from vram import reclaim
from vram.errors import Refused, WorldChanged
from vram.host.local import LocalHost
from vram.model.plan import Plan
from vram.payloads.procfs import read_stat
from vram.reclaim.actions.kill import end_together
from vram.reclaim.planner import plan_ending_orphans
from vram.virtualgpu import VirtualGpu


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def job(
    virtual_gpu: VirtualGpu, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> SpawnedJob:
    """Two workers of a dead launcher, and one that holds nothing yet; this process reads the virtual GPU."""
    environment = virtual_gpu.environment()
    for name in ("LD_LIBRARY_PATH", "VRAM_VIRTUAL_GPU"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = SpawnedJob(virtual_gpu, stack, 1024, 1024, 0)
    made.orphan()
    until(lambda: all(read_stat(pid).state == "S" for pid in made.pids))  # who works is not planned for
    return made


def plan(members: list[tuple[int, int]]) -> Plan:
    return plan_ending_orphans(LocalHost(), members, PATIENCE_S).plan


def execute(made: Plan) -> None:
    reclaim.execute(made, deadline_s=PATIENCE_S, together=True, whole=True)


def test_the_plan_is_exactly_the_job(job: SpawnedJob):
    made = plan(job.identities[:2])
    assert sorted(step.target.process.pid for step in made.steps if step.target) == sorted(job.pids[:2])
    assert {(step.kind, step.finding) for step in made.steps} == {("kill", "VR208")}
    execute(made)
    assert job.living == job.pids[2:]


def test_who_would_start_it_again_is_part_of_the_plan(
    job: SpawnedJob, virtual_gpu: VirtualGpu, stack: ExitStack
):
    other = SpawnedJob(virtual_gpu, stack, -1024)
    other.orphan()
    made = plan(other.identities[:1])
    assert sorted(step.target.process.pid for step in made.steps if step.target) == sorted(other.pids)
    execute(made)
    assert (other.living, job.living) == ([], job.pids)


def test_what_is_not_the_whole_job_or_not_the_same_is_not_planned(job: SpawnedJob):
    one, other, without = job.identities
    for wrong in ([one], [one, other, without], [one, (other[0], other[1] + 1)], [without], [(1, 0)]):
        with pytest.raises(WorldChanged):
            plan(wrong)
    assert job.living == job.pids


def _until_it_sleeps(pid: int, state: str) -> None:
    until(lambda: (stat := read_stat(pid)) is not None and stat.state == state)


def _stop_one(job: SpawnedJob) -> None:
    """VR208 then names nobody: not all of them are healthy."""
    job.send(1, signal.SIGSTOP)
    _until_it_sleeps(job.pids[1], "T")


def _let_one_join(job: SpawnedJob) -> None:
    job.send(2, ALLOCATE)
    until(lambda: job.pids[2] in {each.pid for each in _processes()}, max_pause_s=0.2)


def _processes() -> list:  # type: ignore[type-arg]
    import vram

    return list(vram.account(deadline_s=PATIENCE_S).processes)


CHANGES: dict[str, tuple[Callable[[SpawnedJob], None], list[int]]] = {
    "one has ended": (lambda job: job.end(1), [0, 2]),
    "one has joined": (_let_one_join, [0, 1, 2]),
    "the finding has vanished": (_stop_one, [0, 1, 2]),
}


@pytest.mark.fault(12)
@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_after_the_plan_was_made_refuses_all_of_it(job: SpawnedJob, what: str):
    change, left = CHANGES[what]
    made = plan(job.identities[:2])
    change(job)
    with pytest.raises(WorldChanged):
        execute(made)
    assert job.living == [job.pids[at] for at in left]


@pytest.mark.fault(12)
def test_one_that_ends_at_the_last_moment_keeps_the_others_from_being_signalled(job: SpawnedJob):
    """After the plan was compared with the machine, and before the first signal."""
    made = plan(job.identities[:2])
    job.end(1)
    with pytest.raises(WorldChanged, match="nothing was ended"):
        end_together(LocalHost(), made.steps, 5.0, whole=True)
    assert job.living == [job.pids[0], job.pids[2]]


def test_nothing_is_planned_while_its_gpu_works(job: SpawnedJob, virtual_gpu: VirtualGpu):
    virtual_gpu.set(utilization=40)
    with pytest.raises(Refused, match="works"):
        plan(job.identities[:2])

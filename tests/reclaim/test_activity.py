"""What a job still does is shown beside the plan that ends it, and is no part of that plan."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.report.samples import make_gpu, make_holder, make_ledger
from tests.worker_pool import WorkerPool
from vram.host.ports import ProcessCondition
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, Ledger
from vram.model.process import Job
from vram.reclaim.activity import OVER_S, measure_jobs
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

LOST = Job(by="multiprocessing", key="lost", is_orphan=True)
OTHER = Job(by="multiprocessing", key="other", is_orphan=True)


class Watched:
    """A host whose processes use so much CPU time while somebody sleeps; None: it ends meanwhile."""

    def __init__(self, used: dict[int, float | None], reused: tuple[int, ...] = ()) -> None:
        self._used, self._reused = used, reused
        self.asleep_s = 0.0
        self.proc = self.clock = self

    def condition(self, pid: int) -> ProcessCondition | None:
        used = self._used[pid]
        if used is None and self.asleep_s:
            return None
        started_at = pid + (1 if pid in self._reused and self.asleep_s else 0)
        return ProcessCondition(started_at, "S", False, 1, None, 100.0 + (used or 0.0) * self.asleep_s)

    def sleep(self, seconds: float) -> None:
        self.asleep_s += seconds


def ledger() -> Ledger:
    """Two workers of one job and one of another, on a busy GPU and on one that does not say."""
    entries = [
        Entry(kind="process", nbytes=GIB, holder=make_holder(pid, job=job))
        for pid, job in ((100, LOST), (101, LOST), (200, OTHER))
    ]
    busy = GpuFacts(uuid="GPU-0", name="NVIDIA H200", utilization=37)
    return make_ledger(
        make_gpu(entries[0], entries[2], facts=busy), make_gpu(entries[1], index=1, facts=None)
    )


def measured(host: Watched, *ended: int) -> list[tuple[tuple[int, ...], float | None, dict[int, int | None]]]:
    found = measure_jobs(host, ledger(), ended)  # type: ignore[arg-type]
    return [(each.pids, each.cpu_s, each.gpu_percent) for each in found]


def test_a_job_is_measured_as_a_whole_and_all_of_them_in_the_same_second() -> None:
    host = Watched({100: 0.25, 101: 0.5, 200: 0.0})
    assert measured(host, 101, 200) == [
        ((100, 101), 0.75, {0: 37, 1: None}),
        ((200,), 0.0, {0: 37}),
    ]
    assert host.asleep_s == OVER_S


def test_without_a_job_nobody_waits() -> None:
    host = Watched({})
    assert measured(host, 4711) == []
    assert host.asleep_s == 0


def test_who_ends_meanwhile_is_not_counted_and_a_reused_pid_is_another_process() -> None:
    assert measured(Watched({100: None, 101: 0.5}), 100)[0][1] == 0.5
    assert measured(Watched({100: 9.0, 101: 0.5}, reused=(100,)), 100)[0][1] == 0.5
    assert measured(Watched({100: None, 101: None}), 100)[0][1] is None


@pytest.mark.parametrize("command", [("free", "--orphans"), ("kill", "--job", "{pid}")])
def test_a_job_that_works_is_told_from_one_that_waits(
    virtual_gpu: VirtualGpu, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with WorkerPool(virtual_gpu.environment(), "spin", "sleep") as pool:
        pool.kill_head()
        words = [word.format(pid=pool.workers[0]) for word in command]
        first, second = (_ask(virtual_gpu, tmp_path, *words, "--dry-run", "--json") for _ in range(2))
        (activity,) = first["activity"]
        assert sorted(activity["pids"]) == sorted(pool.workers)
        # How much of its second a worker gets is the machine's choice.
        assert 0 < activity["cpu_s"] < 60
        assert set(activity["gpu_percent"]) == {"0"}
        assert (activity["job"]["by"], activity["job"]["is_orphan"]) == ("multiprocessing", True)
        assert first["plan"]["digest"] == second["plan"]["digest"]
        shown = _run(virtual_gpu, tmp_path, *words, "--dry-run").stdout
        assert "2 multiprocessing workers: " in shown
        assert " s of CPU in the last second, GPU 0 is " in shown


def test_a_plan_that_ends_no_job_says_nothing_of_it(virtual_gpu: VirtualGpu, tmp_path: Path) -> None:
    with WorkerPool(virtual_gpu.environment(), "sleep") as pool:
        answer = _ask(virtual_gpu, tmp_path, "kill", str(pool.workers[0]), "--dry-run", "--json")
        assert (len(answer["plan"]["steps"]), answer["activity"]) == (1, [])


def _ask(gpu: VirtualGpu, state: Path, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(_run(gpu, state, *words).stdout)
    return answer


def _run(gpu: VirtualGpu, state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    state.chmod(0o700)
    argv = [sys.executable, "-m", "vram", *words]
    return gpu.run(argv, capture_output=True, text=True, env={**os.environ, "XDG_STATE_HOME": str(state)})

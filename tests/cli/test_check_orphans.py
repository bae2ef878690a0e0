"""`vram check --leftovers --orphans --wait`: for CI runners, whether a job was left behind."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from tests.cli.conftest import PROGRAM, Run
from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.serve.jobs import SpawnedJob
from vram.virtualgpu import VirtualGpu

FOR_EVER = "7d"  # a command that waited for it would not end within a test's patience
Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job(virtual_gpu: VirtualGpu):  # type: ignore[no-untyped-def]
    with ExitStack() as stack:
        yield SpawnedJob(virtual_gpu, stack, 1024, 1024)


@pytest.fixture
def check(virtual_gpu: VirtualGpu) -> Check:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [*PROGRAM, "check", "--deadline", "60s", *words]
        return virtual_gpu.run(argv, env=os.environ, capture_output=True, text=True, timeout=PATIENCE_S)

    return run


def test_a_job_whose_launcher_lives_is_clean(check: Check, job: SpawnedJob) -> None:
    done = check("--leftovers", "--orphans")
    assert (done.returncode, "clean" in done.stdout, done.stderr) == (0, True, "")


def test_an_orphan_is_1_with_the_command_that_ends_it(check: Check, job: SpawnedJob) -> None:
    job.orphan()
    assert check("--leftovers").returncode == 0
    done = check("--leftovers", "--orphans")
    assert done.returncode == 1, done.stdout + done.stderr
    assert all(f"pid {pid}" in done.stdout for pid in job.pids)
    assert "launcher, multiprocessing, is dead" in done.stdout
    assert done.stdout.endswith("To free it: vram free --orphans\n")
    report = json.loads(check("--leftovers", "--orphans", "--json").stdout)
    held = {entry["holder"]["pid"] for gpu in report["gpus"] for entry in gpu["entries"]}
    assert (report["verdict"], held) == ("held", set(job.pids))
    assert check("--leftovers", "--orphans", "--quiet").stdout == ""


def test_wait_ends_as_soon_as_it_is_clean(check: Check, job: SpawnedJob, virtual_gpu: VirtualGpu) -> None:
    job.orphan()
    words = ("check", "--deadline", "60s", "--leftovers", "--orphans", "--wait", FOR_EVER)
    waiting = virtual_gpu.popen([*PROGRAM, *words], env=os.environ, stdout=-1, text=True)
    try:
        assert check("--leftovers", "--orphans").returncode == 1
        assert waiting.poll() is None, "it ended while there was an orphan"
        for at in range(2):
            job.end(at)
        out, _ = waiting.communicate(timeout=PATIENCE_S)
        assert (waiting.returncode, "clean" in out) == (0, True)
    finally:
        waiting.kill()
        waiting.wait()


def test_wait_is_1_when_the_time_is_up(check: Check, job: SpawnedJob) -> None:
    job.orphan()
    began = time.monotonic()
    done = check("--leftovers", "--orphans", "--wait", "2s")
    assert (done.returncode, time.monotonic() - began >= 2.0) == (1, True)
    assert done.stdout.count("To free it: vram free --orphans") == 1


def test_what_is_clean_is_not_waited_for(check: Check, virtual_gpu: VirtualGpu) -> None:
    assert check("--leftovers", "--orphans", "--wait", FOR_EVER).returncode == 0


@needs("no-driver")
@pytest.mark.fault(8)
def test_no_driver_is_not_waited_for() -> None:
    words = ("check", "--leftovers", "--orphans", "--wait", FOR_EVER)
    done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 3, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--orphans",), "without --leftovers everything counts"),
        (("--wait", "60"), "60s"),
        (("--wait", "soon"), ""),
        (("--wait", "-1s"), ""),
    ],
)
def test_a_wrong_call_is_2(vram: Run, words: tuple[str, ...], hint: str) -> None:
    answer = vram("check", *words)
    assert (answer.code, hint in answer.err) == (2, True), answer


def test_a_snapshot_is_not_waited_for(vram: Run, idle: str) -> None:
    answer = vram("check", "--from", idle, "--wait", "60s")
    assert (answer.code, "leave out --from" in answer.err) == (2, True)

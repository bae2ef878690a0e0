"""``vram slurm prolog`` and ``health``: what earlier jobs left, what a job requires, what drains a node."""

from __future__ import annotations

import json
import signal

import pytest

from tests.slurm.cluster import Left, Running
from tests.slurm.conftest import Site
from tests.slurm.test_epilog import DAEMON, NOBODY, PRINT_JOB, SHARD, by_hand


@pytest.fixture
def late(site: Site) -> Left:
    """A leftover that nobody saw: it takes GPU memory only after its job's epilog."""
    left = site.leave("late", 256, options=SHARD)
    assert left.living()
    before = free_bytes(site)
    left.signal(signal.SIGUSR1)
    site.until(lambda: free_bytes(site) < before, "it uses the GPU")
    return left


def free_bytes(site: Site) -> int:
    done = by_hand(site, "health", {}, "--json")
    return int(json.loads(done.stdout)["free_bytes"]["0"])


def test_what_an_ended_job_left_is_freed_before_the_next_one_starts(
    site: Site, late: Left, beside: list[Running]
) -> None:
    beside.append(site.background(*site.program("works", 64), options=SHARD, user=DAEMON))
    # The neighbour's own prolog has freed it already: its GPU is the same.
    assert not late.living()
    assert list(site.ended(beside[0].job, "prolog")) == late.pids
    assert site.ended(beside[0].job, "prolog")[late.pids[0]]["left_by"] == late.job
    job = json.loads(site.srun(site.python, "-c", PRINT_JOB, options=SHARD).stdout)["job"]
    assert site.ended(job, "prolog") == {}
    assert beside[0].living()


def test_a_job_that_nobody_saw_end_is_left_alone(site: Site, beside: list[Running]) -> None:
    """Its processes may serve an allocation that has no step at this moment."""
    unseen = str(site.first_job + 9_000)
    beside.append(site.background(*site.program("works", 64), command="env", SLURM_JOB_ID=unseen))
    site.options("prolog", "--require-clean")
    site.run("srun", "--immediate", *SHARD, "true")
    site.until(lambda: "drain" in site.state(), "the node is drained")
    assert beside[0].living()
    assert "rolog" in site.reason()


def test_a_job_that_was_requeued_under_its_number_is_another(site: Site, beside: list[Running]) -> None:
    """What was started after the job's recorded end belongs to its next run."""
    first = site.leave("daemon", 64, options=SHARD)
    beside.append(site.background(*site.program("works", 64), command="env", SLURM_JOB_ID=first.job))
    done = by_hand(site, "prolog", site.hook_environment(site.first_job + 9_000, NOBODY, "0"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == []
    assert beside[0].living()


def test_requirements_that_are_not_met_send_the_job_back(site: Site, late: Left) -> None:
    """A prolog that fails: the node is drained, and the job waits in the queue."""
    site.options("prolog", "--require", "9000GiB")
    job = site.sbatch("#!/bin/sh\ntrue\n", *SHARD, user=DAEMON)
    site.until(lambda: "drain" in site.state(), "the node is drained")
    site.until(lambda: site.job(job).get("JobState") == "PENDING", "the job is queued again")
    assert site.result(job, "prolog")["exit_code"] == 1
    assert not late.living(), "leftovers are freed whatever is required"
    site.run("scancel", str(job))


@pytest.mark.parametrize(
    ("words", "code"),
    [((), 0), (("--require", "1GiB"), 0), (("--require", "9000GiB"), 1), (("--require-clean",), 0)],
)
def test_the_prologs_exit_code(site: Site, words: tuple[str, ...], code: int) -> None:
    variables = site.hook_environment(site.first_job + 9_000, NOBODY, "0")
    done = by_hand(site, "prolog", variables, *words)
    assert done.returncode == code, done.stdout + done.stderr


def test_what_cannot_be_read_does_not_meet_a_requirement(site: Site) -> None:
    site.gpu.fail("nvmlDeviceGetMemoryInfo*", error="UNKNOWN")
    variables = site.hook_environment(site.first_job + 9_000, NOBODY, "0")
    assert by_hand(site, "prolog", variables).returncode == 0
    assert by_hand(site, "prolog", variables, "--require", "1GiB").returncode == 3
    assert by_hand(site, "prolog", variables, "--unknown-counts").returncode == 3


def test_health_reads_and_drains_only_if_told(site: Site, late: Left) -> None:
    variables = {"SLURMD_NODENAME": site.node, "SLURM_CONF": str(site.conf)}
    done = by_hand(site, "health", variables)
    assert done.returncode == 1
    assert f"job {late.job}" in done.stdout
    assert "drain" not in site.state()
    assert late.living()
    assert by_hand(site, "health", variables, "--drain").returncode == 1
    site.until(lambda: "drain" in site.state(), "the node is drained")
    reason = site.reason()
    assert reason.startswith("vram: ")
    assert "held on GPU 0" in reason
    # Once: whoever said why it is drained is not spoken over.
    site.run("scontrol", "update", f"NodeName={site.node}", "State=DRAIN", "Reason=disk")
    assert by_hand(site, "health", variables, "--drain").returncode == 1
    assert site.reason() == "disk"
    assert late.living()


def test_health_of_a_node_whose_jobs_work(site: Site, beside: list[Running]) -> None:
    """A running job is healthy, stopped or not: Slurm itself stops jobs that are suspended."""
    beside.append(site.background(*site.program("works", 64), options=SHARD))
    beside[0].signal(signal.SIGSTOP)
    assert by_hand(site, "health", {}, "--expect", "2").returncode == 0
    assert by_hand(site, "health", {}, "--expect", "8").returncode == 3
    missing = by_hand(site, "health", {}, "--expect", "8", "--drain", "--unknown-counts")
    assert missing.returncode == 2
    assert "is not the name of a node" in missing.stderr

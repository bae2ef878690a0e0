"""Memory of orphaned jobs comes back by one command that names them, and nobody else is ended."""

from __future__ import annotations

import json
import re

import pytest

from tests.jobs.conftest import JobsMachine, read
from tests.patience import until, until_ended
from vram.errors import ExitCode

ORPHANS = ("lost0", "lost1")
HEALTHY = ("rank0", "rank1", "worker0", "worker1", "nohup")
NOHUP = 'sh -c nohup~"$@"~>/dev/null~2>&1~& sh $python $worker nohup'


@pytest.fixture
def crowded(machine: JobsMachine) -> JobsMachine:
    """An orphaned job among a healthy one, a pool of workers and somebody's nohup."""
    machine.start(
        machine.command("$python $here/torch_agent.py $socket 2 $worker lost{RANK}"), env={"HEAD": "dead"}
    )
    machine.start(machine.command("$python $here/torch_agent.py $socket 2 $worker rank{RANK}"))
    machine.start(machine.command("$python $here/pool.py spawn $socket"), env={"HEAD": "pool"})
    shell = machine.start(machine.command(NOHUP))
    machine.wait_for(*ORPHANS, *HEALTHY, "dead", "head", "pool")
    shell.wait()
    machine["dead"].kill()
    return machine


def living(machine: JobsMachine, *names: str) -> set[str]:
    return {name for name in names if machine[name].lives}


def test_free_ends_orphans_only_where_it_is_told_to(crowded: JobsMachine) -> None:
    plain = crowded.vram("free", "--yes")
    assert "vram free --orphans" in plain.stdout + plain.stderr
    assert living(crowded, *ORPHANS) == set(ORPHANS)

    plan = json.loads(crowded.vram("free", "--orphans", "--dry-run", "--json").stdout)["plan"]
    planned = {step["target"]["process"]["pid"] for step in plan["steps"]}
    assert planned == {crowded[name].pid for name in ORPHANS}
    assert living(crowded, *ORPHANS) == set(ORPHANS)

    done = crowded.vram("free", "--orphans", "--yes")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert living(crowded, *ORPHANS, *HEALTHY, "head", "pool") == {*HEALTHY, "head", "pool"}
    assert crowded.states(read()) == dict.fromkeys(HEALTHY, "healthy")


def test_a_check_for_leftovers_minds_orphans_where_it_is_told_to(crowded: JobsMachine) -> None:
    assert crowded.vram("check", "--leftovers").returncode == ExitCode.OK
    told = crowded.vram("check", "--leftovers", "--orphans")
    assert told.returncode == 1, told.stdout + told.stderr
    for name in ORPHANS:
        crowded[name].kill()
    assert crowded.vram("check", "--leftovers", "--orphans").returncode == ExitCode.OK


def test_an_orphaned_job_ends_as_one(crowded: JobsMachine) -> None:
    done = crowded.vram("kill", "--job", crowded["lost1"].pid, "--yes")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert living(crowded, *ORPHANS, *HEALTHY, "head", "pool") == {*HEALTHY, "head", "pool"}


def test_an_orphaned_engine_ends_with_its_workers(machine: JobsMachine) -> None:
    """It holds nothing itself; but it is what is left of their launchers, and nobody's any more."""
    machine.start(machine.command("$python $here/server.py vllm fork $socket"))
    machine.wait_for("head", "engine", "worker0", "worker1")
    machine["head"].kill()
    done = machine.vram("free", "--orphans", "--yes")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert living(machine, "engine", "worker0", "worker1") == set()


def test_a_job_ends_without_what_is_left_of_the_one_before_it(machine: JobsMachine) -> None:
    """Both had the same command and the same address."""
    for job in ("old", "new"):
        command = f"$python $here/deepspeed_launch.py $socket 2 $worker {job}{{RANK}}"
        machine.start(machine.command(command), env={"HEAD": job})
        machine.wait_for(job, f"{job}0", f"{job}1")
        if job == "old":
            machine["old0"].kill()
            machine["old"].kill()
    done = machine.vram("kill", "--job", machine["new0"].pid, "--yes")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    assert living(machine, "new", "new0", "new1", "old1") == {"old1"}


def test_a_healthy_job_ends_with_the_agent_that_would_start_it_again(machine: JobsMachine) -> None:
    machine.start(
        machine.command("$python $here/torch_agent.py $socket 2 $worker rank{RANK}"), env={"RESTARTS": "1"}
    )
    machine.start(machine.command("$python $here/pool.py spawn $socket"), env={"HEAD": "pool"})
    machine.wait_for("head", "rank0", "rank1", "pool", "worker0", "worker1")
    done = machine.vram("kill", "--job", machine["rank1"].pid, "--yes")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    for name in ("head", "rank0", "rank1"):
        until_ended(machine[name].pidfd)
    left = read()
    assert machine.states(left) == {"worker0": "healthy", "worker1": "healthy"}
    assert len(left.processes) == 2, "a rank was started again"
    assert machine["pool"].lives


def test_a_job_is_not_ended_from_inside_itself(machine: JobsMachine) -> None:
    """vram ends none of its own ancestors: neither the rank that asks, nor the agent above it."""
    machine.start(
        machine.command("$python $here/torch_agent.py $socket 2 $here/asking.py $socket rank{RANK}")
    )
    machine.wait_for("head", "rank0", "rank1")
    for name in ("rank0", "rank1"):
        machine[name].tell()
    answer = machine.folder / "answer"
    until(answer.exists)
    code, stdout, stderr = json.loads(answer.read_text())
    assert code != ExitCode.OK, stdout + stderr
    assert "Traceback" not in stderr
    assert living(machine, "head", "rank0") == {"head", "rank0"}


def test_a_page_about_one_process_names_its_job(machine: JobsMachine) -> None:
    machine.start(machine.command("$python $here/torch_agent.py $socket 3 $worker rank{RANK}"))
    machine.wait_for("head", "rank0", "rank1", "rank2")
    machine["rank1"].kill()
    page = machine.vram("why", machine["rank0"].pid).stdout
    assert "torchrun" in page
    assert str(machine["head"].pid) in page
    assert re.search(r"\brank 1\b", page), page


def test_a_job_is_parked_as_one(machine: JobsMachine) -> None:
    machine.start(machine.command("$python $here/pool.py spawn $socket"))
    machine.wait_for("head", "worker0", "worker1")
    pids = {machine["worker0"].pid, machine["worker1"].pid}
    for named in ("worker1", "head"):
        done = machine.vram("park", "--job", machine[named].pid, "--json")
        assert done.returncode == ExitCode.OK, done.stdout + done.stderr
        assert {line["pid"] for line in json.loads(done.stdout)["moved"]} == pids
        assert machine.vram("unpark", "--all").returncode == ExitCode.OK
    assert machine.states(read()) == {"worker0": "healthy", "worker1": "healthy"}


def test_a_job_sleeps_as_one_and_a_word_to_one_part_wakes_all(machine: JobsMachine) -> None:
    machine.start(machine.command("$python $here/pool.py spawn $socket"))
    machine.wait_for("head", "worker0", "worker1")
    pids = {machine["worker0"].pid, machine["worker1"].pid}
    done = machine.vram("sleep", "--job", machine["head"].pid, "--json")
    assert done.returncode == ExitCode.OK, done.stdout + done.stderr
    (program,) = json.loads(done.stdout)["sleeping"]
    assert {target["process"]["pid"] for target in program["targets"]} == pids
    assert {share["nbytes"] > 0 for share in program["shares"]} == {True}
    assert set(machine.states(read()).values()) <= {"asleep", "parked"}
    machine["worker1"].tell()
    until(lambda: json.loads(machine.vram("sleep", "--json").stdout)["sleeping"] == [], max_pause_s=0.1)
    assert machine["worker0"].lives


def test_who_is_of_no_job_is_said(machine: JobsMachine) -> None:
    machine.start(machine.command("$python $worker it"))
    machine.wait_for("it")
    for command in ("kill", "park"):
        done = machine.vram(command, "--job", machine["it"].pid)
        assert done.returncode == ExitCode.NOT_ON_GPU, done.stdout + done.stderr
        assert "belongs to no job" in done.stderr

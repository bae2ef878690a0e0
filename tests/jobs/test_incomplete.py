"""A job that is not whole, whose rest has done nothing for long: an orphan, whoever has adopted it.

Nobody waits ten minutes here: the machine is read as it is, and judged as it will be when ten minutes have
gone by and nothing else has changed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.jobs.conftest import JobsMachine
from tests.needs import needs, skip_without
from tests.patience import PATIENCE_S, until
from vram.accounting import Account
from vram.diagnosis.engine import diagnose
from vram.host.local import LocalHost
from vram.host.local.rest import SchedulerClock, idle_for
from vram.ledger.build import build_ledger
from vram.ledger.holds import find_holds
from vram.ledger.launchers import MIN_IDLE_S
from vram.model.observation import Survey
from vram.model.process import RestFacts
from vram.reading import read_survey
from vram.virtualgpu import VirtualGpu

pytestmark = needs("kernel", there=Path("/proc/self/sched").exists(), detail="no /proc/PID/sched")

PTRACE_SEIZE = 0x4206
RANKS = ("rank0", "rank1", "rank2", "rank3")
JOB = "$python $here/torch_agent.py $socket 4 $worker rank{RANK}"


def rests(taken: Survey) -> list[RestFacts]:
    return [each.facts for each in taken.observations if isinstance(each.facts, RestFacts)]


def read() -> Survey:
    return read_survey(LocalHost(), PATIENCE_S)


def settled() -> Survey:
    """The machine, once it is certain what is left of the job, and that this rests."""
    return until(lambda: [taken] if rests(taken := read()) else [], max_pause_s=0.5)[0]


def later(taken: Survey, seconds: float = MIN_IDLE_S) -> Survey:
    """*taken* after that time, in which nothing happened."""

    def passed(facts: object) -> object:
        return replace(facts, idle_s=facts.idle_s + seconds) if isinstance(facts, RestFacts) else facts

    return replace(
        taken,
        observations=tuple(replace(each, facts=passed(each.facts)) for each in taken.observations),
    )


def account_of(taken: Survey) -> Account:
    ledger = build_ledger(taken)
    return Account(ledger, find_holds(ledger), diagnose(ledger))


def states(machine: JobsMachine, taken: Survey) -> dict[str, str]:
    return machine.states(account_of(taken))


def start(machine: JobsMachine, adopter: str, *options: str, **environment: str) -> None:
    """Four ranks and their agent, below a program of that name that adopts."""
    shutil.copy(os.path.realpath("/bin/sh"), machine.folder / adopter)
    words = f"$python $here/adopter.py {machine.folder}/{adopter} {JOB} {' '.join(options)}"
    machine.start(machine.command(words), env=environment)
    machine.wait_for("head", *RANKS)


@pytest.fixture
def job(machine: JobsMachine) -> JobsMachine:
    """Below one that nobody knows."""
    start(machine, "supervise")
    return machine


@pytest.fixture
def left(job: JobsMachine) -> JobsMachine:
    """The agent and a rank are dead."""
    job["rank2"].kill()
    job["head"].kill()
    return job


def healthy(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, "healthy")


def test_what_is_left_is_an_orphan_after_ten_minutes(left: JobsMachine) -> None:
    taken = settled()
    (rest,) = set(rests(taken))
    assert rest.ranks == (0, 1, 3)
    assert rest.pids == tuple(sorted(left[name].pid for name in ("rank0", "rank1", "rank3")))
    assert states(left, taken) == healthy("rank0", "rank1", "rank3")

    account = account_of(later(taken))
    assert left.states(account) == dict.fromkeys(("rank0", "rank1", "rank3"), "orphan")
    assert left.orphan_findings(account) == [["rank0", "rank1", "rank3"]]
    (finding,) = (each for each in account.findings if each.code == "VR208")
    assert "of the 4 ranks that torchrun started here 3 live: 0, 1, 3" in finding.evidence
    assert any("less than 1% of a CPU for 10 min" in line for line in finding.evidence)


def test_a_gpu_that_works_or_does_not_say_is_a_doubt(left: JobsMachine, virtual_gpu: VirtualGpu) -> None:
    settled()
    virtual_gpu.set(utilization=1)
    assert states(left, later(settled())) == healthy("rank0", "rank1", "rank3")


def test_a_job_that_is_whole_is_not_judged(job: JobsMachine) -> None:
    job["head"].kill()
    taken = read()
    assert rests(taken) == []
    assert states(job, taken) == healthy(*RANKS)


def test_a_launcher_that_lives_ends_the_rest_itself(job: JobsMachine) -> None:
    job["rank2"].kill()
    taken = read()
    assert rests(taken) == []
    assert states(job, taken) == healthy("rank0", "rank1", "rank3")


def test_a_rank_without_memory_is_a_rank(machine: JobsMachine) -> None:
    start(machine, "supervise", "--without-memory=2")
    machine["head"].kill()
    taken = settled()
    assert {each.ranks for each in rests(taken)} == {(0, 1, 2, 3)}
    assert states(machine, later(taken)) == healthy("rank0", "rank1", "rank3")


def test_one_that_is_left_alone_proves_nothing(left: JobsMachine) -> None:
    """It may as well have been started in a shell that has a rank's environment."""
    for name in ("rank1", "rank3"):
        left[name].kill()
    taken = read()
    assert rests(taken) == []
    assert states(left, taken) == healthy("rank0")


@pytest.mark.parametrize("adopter", ["bash", "tmux", "sshd", "python3.99", "prted"])
def test_a_parent_that_may_have_started_them_is_no_adopter(machine: JobsMachine, adopter: str) -> None:
    start(machine, adopter)
    machine["rank2"].kill()
    machine["head"].kill()
    taken = read()
    assert rests(taken) == []
    assert states(machine, taken) == healthy("rank0", "rank1", "rank3")


def test_a_rank_that_is_stopped_is_a_doubt(left: JobsMachine) -> None:
    settled()
    left["rank0"].send(signal.SIGSTOP)
    taken = until(lambda: [] if rests(taken := read()) else [taken], max_pause_s=0.5)[0]
    assert states(left, later(taken)) == {"rank0": "stopped", **healthy("rank1", "rank3")}


def test_a_rank_that_is_traced_is_a_doubt(left: JobsMachine) -> None:
    """A debugger that is attached lets it run, or holds it where nothing runs."""
    settled()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(PTRACE_SEIZE, left["rank1"].pid, None, None):
        skip_without("ptrace", os.strerror(ctypes.get_errno()))
    taken = read()
    assert rests(taken) == []
    assert states(left, taken) == healthy("rank0", "rank1", "rank3")


def test_who_may_be_the_missing_rank_is_a_doubt(machine: JobsMachine) -> None:
    """A rank that has written a title over its environment; once it has ended, there is none."""
    start(machine, "supervise", TITLED="2")
    machine["head"].kill()
    until(lambda: all(idle_s(machine, name) > 1.0 for name in RANKS))
    taken = read()
    assert rests(taken) == []
    assert "orphan" not in states(machine, later(taken)).values()
    machine["rank2"].kill()
    assert rests(settled())[0].ranks == (0, 1, 3)


def test_others_with_a_title_are_none(left: JobsMachine) -> None:
    """They lead their session and cannot be read, but the launcher's adopter is not their parent."""
    words = "import sys, worker; worker.set_title('train'); worker.hold(sys.argv[1], 'titled')"
    left.start(
        [sys.executable, "-c", words, left.address], env={"PYTHONPATH": str(left.folder / "launchers")}
    )
    left.wait_for("titled")
    assert rests(settled())[0].ranks == (0, 1, 3)


def idle_s(machine: JobsMachine, name: str) -> float:
    clock = SchedulerClock.read()
    return (idle_for(machine[name].pid, clock) or 0.0) if clock else 0.0

"""Row 30: clocks that jump, and a machine that slept: ages go on, identities stay, actions reach the same.

A time namespace has clocks of its own. One whose boot clock is ahead of its monotonic clock is a machine
that was suspended for the difference.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.diagnosis.ledgers import entry, gpu, holder, ledger
from tests.needs import skip_without
from tests.parking.conftest import CHECKPOINTED, Machine, runs_on
from tests.patience import PATIENCE_S
from tests.reclaim.conftest import Bench
from tests.reclaim.town import Town
from vram.diagnosis.engine import diagnose
from vram.model.plan import PlanRequest
from vram.reclaim.executor import execute
from vram.reclaim.plan_file import digest_of
from vram.reclaim.planner import plan
from vram.units import GIB, duration

DAY_S = 86400
CLOCKS = {
    "suspended for a day": (DAY_S, 0),
    "both ahead": (DAY_S, DAY_S),
    "both behind": (-60, -60),
}


def on_other_clocks(boot_s: int, monotonic_s: int) -> tuple[str, ...]:
    """The words before a command that is to run where the clocks are so many seconds ahead."""
    offsets = ("--boottime", str(boot_s), "--monotonic", str(monotonic_s))
    words = ("unshare", "--time", "--fork", "--kill-child", *offsets)
    if not shutil.which("unshare") or subprocess.run([*words, "true"], capture_output=True).returncode:
        skip_without("namespaces", "no time namespace may be made here")
    return words


def held(answer: dict[str, Any], pid: int) -> dict[str, Any]:
    (found,) = (
        each["holder"]
        for gpu in answer["gpus"]
        for each in gpu["entries"]
        if each["holder"] and each["holder"]["pid"] == pid
    )
    return dict(found)


@pytest.mark.fault(30)
@pytest.mark.parametrize("clocks", CLOCKS.values(), ids=CLOCKS)
def test_ages_are_the_same_whatever_the_clocks_say(machine: Bench, clocks: tuple[int, int]) -> None:
    other = on_other_clocks(*clocks)
    began = time.monotonic()
    pid = machine.demo("memory.plain", GIB).pids["self"]
    ages = [held(machine.why(prefix=prefix), pid)["age_s"] for prefix in ((), other, (), other)]
    assert ages == sorted(ages)
    assert ages[-1] <= time.monotonic() - began + 0.01  # start times count hundredths


@pytest.mark.fault(30)
def test_who_is_chosen_there_is_who_is_ended(machine: Bench) -> None:
    other = on_other_clocks(DAY_S, 0)
    healthy = machine.demo("memory.plain", GIB).pids["self"]
    orphan = machine.demo("forks.orphan", GIB)
    orphan.kill("parent")
    done = machine.vram("free", "--yes", "--up-to", "kill", "--json", prefix=other)
    assert done.returncode == 0, done.stderr
    targets = [
        each["step"]["target"]["process"]["pid"] for each in machine.audit() if each["event"] == "intend"
    ]
    assert targets == [orphan.pids["child"]]
    assert held(machine.why(), healthy)["pid"] == healthy


@pytest.mark.fault(30)
def test_a_plan_made_by_other_clocks_is_refused_or_meets_its_target(machine: Bench, tmp_path: Path) -> None:
    """Start times are counted by the boot clock: by another one, who is meant cannot be told."""
    other = on_other_clocks(DAY_S, 0)
    pid = machine.demo("memory.plain", GIB).pids["self"]
    saved = str(tmp_path / "plan.json")
    assert machine.vram("free", "--pid", str(pid), "--up-to", "kill", "--save", saved).returncode == 1
    done = machine.vram("free", "--plan", saved, "--yes", prefix=other)
    assert done.returncode == 15, done.stderr
    os.kill(pid, 0)
    assert not machine.audit()
    assert machine.vram("free", "--plan", saved, "--yes").returncode == 0


@pytest.mark.fault(30)
@pytest.mark.parametrize("verbs", [("park",), ("park", "parked")], ids=" and ".join)
def test_a_process_parked_by_other_clocks_comes_back(
    parking_machine: Machine, verbs: tuple[str, ...]
) -> None:
    """By other clocks its start time is another one: whoever cannot tell who it is asks the driver."""
    machine = parking_machine
    other = on_other_clocks(DAY_S, DAY_S)
    worker = machine.worker()

    def run(prefix: tuple[str, ...], verb: str) -> None:
        pids = () if verb == "parked" else (str(worker.pid),)
        argv = [*prefix, sys.executable, "-m", "vram", verb, *pids]
        done = subprocess.run(
            argv, env=machine.environment(), capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == 0, done.stderr

    for at, verb in enumerate(verbs):
        run(other if at % 2 else (), verb)
        assert machine.state(worker.pid) == CHECKPOINTED
    run(other, "unpark")
    assert runs_on(worker)
    assert machine.parked() == []


@pytest.mark.fault(30)
@pytest.mark.parametrize("now", ["1999-12-31T23:59:59Z", "2099-01-01T00:00:00Z"])
def test_the_time_of_day_is_no_part_of_a_plan(state: Path, now: str) -> None:
    """A plan made before the clock was set runs after it; a wrong year changes no digest."""
    town = Town(ledger(gpu(entry("orphaned", 2 * GIB, charged_pid=1, holder=holder(51)))))
    made = plan(town, town.ledger, diagnose(town.ledger), PlanRequest(only="kill")).plan
    later = replace(made, made_at=now)
    assert made.made_at != now
    assert digest_of(later) == made.digest
    assert [each.status for each in execute(town, later, timeout_s={"kill": 0.0}).outcomes] == ["done"]


@pytest.mark.fault(30)
def test_an_age_is_never_negative() -> None:
    """The clock was set back after a process was parked."""
    assert duration(-DAY_S) == "0 s"

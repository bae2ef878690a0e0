"""``vram trim`` without a pid: whose caches could be emptied, and nobody is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.reach.conftest import CACHED, World
from tests.reach.conftest import world as world  # the fixture

NOTHING_FOUND = 9


@pytest.fixture
def stopped(world: World) -> int:
    """Somebody who does not run, and so cannot be asked to release anything."""
    subject = world.subject("reading", "agent")
    subject.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.pid, os.WSTOPPED)
    return subject.pid


def test_for_a_pid_it_is_trim(world: World) -> None:
    subject = world.subject("reading", "agent")
    done = world.vram("trim", subject.pid, "--json")
    assert done.returncode == 0, done.stderr
    (receipt,) = json.loads(done.stdout)["trimmed"]
    assert receipt["charged_before"] - receipt["charged_after"] >= CACHED
    assert [line["action"] for line in world.audit() if line["event"] == "intend"] == ["trim"]


def test_without_one_it_lists_and_touches_nobody(world: World, stopped: int) -> None:
    subject = world.subject("reading", "agent")
    done = world.vram("trim", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (found,) = told["trimmable"]
    assert (found["pid"], found["gpus"], found["via"], found["reason"]) == (subject.pid, [0], "agent", "")
    assert found["nbytes"] >= CACHED
    (refused,) = told["refused"]
    assert (refused["pid"], refused["via"]) == (stopped, None)
    assert refused["reason"]
    assert world.audit() == []
    # What it holds is all still there for the first real flush.
    receipt = world.trim(subject.pid)
    assert receipt["charged_before"] - receipt["charged_after"] >= CACHED


def test_the_lines_to_type_are_shown(world: World, stopped: int) -> None:
    subject = world.subject("reading", "agent")
    done = world.vram("trim", "--ascii", COLUMNS="80")
    lines = done.stdout.splitlines()
    assert f"  vram trim {subject.pid}" in lines
    assert "  vram free --caches" in lines
    assert f"- pid {stopped}, GPU 0" in done.stdout
    assert max(map(len, lines)) <= 80


def test_nobody_to_ask_has_a_status_of_its_own(world: World, stopped: int) -> None:
    done = world.vram("trim")
    assert done.returncode == NOTHING_FOUND
    assert done.stdout.startswith("No process's caches can be released from here. Nothing was touched.")


def test_an_empty_gpu(world: World) -> None:
    done = world.vram("trim")
    assert (done.returncode, done.stdout) == (
        0,
        "No process here holds GPU memory: nothing to trim.\n",
    )


def test_a_pid_that_nobody_has(world: World) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert world.vram("trim", gone.pid).returncode == 10

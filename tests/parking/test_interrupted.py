"""Fault row 10: whatever ends vram, whenever: nobody is left locked, and what is parked is found again.

``VRAM_KILLS=1000`` makes the random part as long as the promise is.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time

import pytest

from tests.parking.conftest import (
    CHECKPOINTED,
    LOCKED,
    RUNNING,
    Machine,
    keeper_of,
    kill,
    kill_both,
    runs_on,
    until_it_has_a_claim,
)

KILLS = int(os.environ.get("VRAM_KILLS", "40"))
SLOW_S = 0.3
PATIENCE_S = 60.0
HOG = """
    cuda.start()
    cuda.alloc(139 << 30)
    cuda.tell("ready")
    cuda.heard()
"""


@pytest.mark.fault(10)
def test_ctrl_c_brings_the_process_back(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=SLOW_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    vram.send_signal(signal.SIGINT)
    assert vram.wait() == 130
    assert runs_on(worker)
    assert machine.parked() == []
    intended, outcome = machine.audit()
    assert (intended["action"], outcome["status"], outcome["message"]) == (
        "park",
        "failed",
        "KeyboardInterrupt",
    )


@pytest.mark.fault(10)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_a_vram_that_is_ended_while_its_target_is_locked(machine: Machine, number: signal.Signals) -> None:
    """Its keeper undoes what was begun, without it."""
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=SLOW_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    vram.send_signal(number)
    vram.wait()
    machine.until_nobody_moves(worker.pid)
    assert machine.state(worker.pid) == RUNNING
    assert runs_on(worker)
    assert machine.parked() == []


@pytest.mark.fault(10)
def test_vram_and_its_keeper_killed_while_the_target_is_locked(machine: Machine) -> None:
    """Nobody is left to undo it; the next vram does, and says so."""
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=60)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill_both(vram)
    assert machine.state(worker.pid) == LOCKED
    machine.gpu.clear_faults()
    done = machine.vram("parked")
    assert (done.stdout, "left locked" in done.stderr) == ("Nothing is parked.\n", True)
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_vram_and_its_keeper_killed_after_the_restore(machine: Machine) -> None:
    """Between restore and unlock the target has its memory and stands still."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    machine.gpu.fail("cuCheckpointProcessUnlock", slow_s=60)
    vram = machine.start("unpark", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill_both(vram)
    machine.gpu.clear_faults()
    machine.vram("parked")
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_a_keeper_that_is_killed_is_replaced_and_the_target_unlocked(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=60)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    machine.gpu.clear_faults()
    kill(keeper_of(vram))
    assert vram.wait() == 3
    assert runs_on(worker)
    assert machine.parked() == []


def test_ctrl_c_on_a_wait_for_room_calls_it_off(machine: Machine) -> None:
    """Its keeper leaves with it: the claim is free, and room that comes later changes nothing."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    hog = machine.program(HOG)
    waiting = machine.start("unpark", "--wait", "900", worker.pid)
    keeper = keeper_of(waiting)
    until_it_has_a_claim(keeper)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait() == 130
    left, _, _ = select.select([keeper], [], [], PATIENCE_S)
    assert left, "the keeper waits on"
    os.close(keeper)
    hog.kill()
    assert machine.state(worker.pid) == CHECKPOINTED
    assert [line["state"] for line in machine.parked()] == ["parked"]
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_a_keeper_that_is_killed_while_it_brings_back_is_replaced(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    machine.gpu.fail("cuCheckpointProcessUnlock", slow_s=60)
    vram = machine.start("unpark", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    machine.gpu.clear_faults()
    kill(keeper_of(vram))
    assert vram.wait() == 0
    assert runs_on(worker)


@pytest.mark.fault(31)
def test_two_at_once_do_not_get_in_each_others_way(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=4)
    first = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    (line,) = machine.parked()
    assert line["state"] == "busy"
    second = machine.vram("park", worker.pid)
    assert second.returncode == 20, second.stderr
    assert first.wait() == 0
    assert machine.state(worker.pid) == CHECKPOINTED


def test_a_driver_that_never_returns_is_given_up_in_time(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", hang=True)
    began = time.monotonic()
    told, keeper = machine.api(f"""
import json
from vram.errors import TimedOut
from vram.host.local import LocalHost
from vram.reclaim.parking import Parking
from vram.reclaim.preflight import admit, look
host = LocalHost()
target, shares = admit(host, look(host), {worker.pid})
with Parking(host) as parking:
    keeper = parking.keeper._child.pid
    try:
        parking.park(target, shares, lock_timeout_s=0.1, deadline_s=0.4)
    except TimedOut as error:
        print(json.dumps([str(error), keeper]))
""")
    assert "has not finished" in told
    assert time.monotonic() - began < 20
    pidfd = os.pidfd_open(keeper)
    (line,) = machine.parked()
    assert line["state"] == "busy", "the keeper waits for the driver, and will undo what it began"
    kill(pidfd)
    machine.gpu.clear_faults()
    assert machine.parked() == []
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_random_kills_leave_nobody_locked(machine: Machine) -> None:
    """Park, unpark and borrow in turn, each killed at a random moment, half of them with their keeper."""
    worker = machine.worker()
    for call in ("Checkpoint", "Restore", "Unlock"):
        machine.gpu.fail(f"cuCheckpointProcess{call}", slow_s=0.02)
    chance = random.Random(20)
    # As long as a command takes here: a moment chosen in there is one in which it is at work.
    whole_s = max(timed(machine, "park", worker.pid), timed(machine, "unpark", worker.pid))
    ends = {"in time": 0, "killed": 0, "locked": 0}
    for _ in range(KILLS):
        ends[one_kill(machine, worker.pid, chance, whole_s)] += 1
        state = machine.state(worker.pid)
        assert state in (RUNNING, CHECKPOINTED)
        assert [line["pid"] for line in machine.parked()] == [worker.pid] * (state == CHECKPOINTED)
    machine.vram("unpark", "--all")
    assert runs_on(worker)
    assert ends["killed"] > KILLS / 4, ends


def timed(machine: Machine, *words: object) -> float:
    began = time.monotonic()
    assert machine.vram(*words).returncode == 0
    return time.monotonic() - began


def one_kill(machine: Machine, pid: int, chance: random.Random, whole_s: float) -> str:
    words = ("unpark", pid) if machine.state(pid) == CHECKPOINTED else ("park", pid)
    if words[0] == "park" and chance.random() < 0.3:
        words = ("borrow", "139.5GiB", "--", "true")
    vram = machine.start(*words)
    keeper = keeper_of(vram)
    try:
        vram.wait(chance.uniform(0.0, whole_s))
        os.close(keeper)
        return "in time"
    except subprocess.TimeoutExpired:
        vram.kill()
        vram.wait()
    if chance.random() < 0.5:
        kill(keeper)
        locked = machine.state(pid) == LOCKED
        machine.parked()
        return "locked" if locked else "killed"
    os.close(keeper)
    machine.until_nobody_moves(pid)
    return "killed"

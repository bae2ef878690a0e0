"""Fault row 10: whatever ends vram, whenever: nobody is left locked, and what is parked is found again.

``VRAM_KILLS=1000`` makes the random part as long as the promise is.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.faults.record import Tally
from tests.parking.conftest import (
    CHECKPOINTED,
    LOCKED,
    RUNNING,
    Machine,
    checkpoint_worker_if_any,
    checkpoint_worker_of,
    kill,
    kill_both,
    runs_on,
    stopped,
    until_delivered,
    until_it_has_a_claim,
)
from tests.patience import PATIENCE_S, until_ended
from tests.virtualgpu.programs import Program

KILLS = int(os.environ.get("VRAM_KILLS", "10"))
# From the claim on the target to its being settled, where each of the driver's calls takes SLOW_S.
SLOW_S = 0.05
MOVE_S = 3 * SLOW_S
HOG = """
    cuda.start()
    cuda.alloc(139 << 30)
    cuda.tell("ready")
    cuda.heard()
"""


@pytest.mark.fault(10)
def test_ctrl_c_brings_the_process_back(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    vram.send_signal(signal.SIGINT)
    until_delivered(vram, signal.SIGINT)
    machine.gpu.clear_faults()
    assert vram.wait(PATIENCE_S) == 130
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
    """Its checkpoint worker undoes what was begun, without it."""
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    vram.send_signal(number)
    until_delivered(vram, number)
    machine.gpu.clear_faults()
    vram.wait(PATIENCE_S)
    machine.until_nobody_moves(worker.pid)
    assert machine.state(worker.pid) == RUNNING
    assert runs_on(worker)
    assert machine.parked() == []


@pytest.mark.fault(10)
def test_vram_and_its_checkpoint_worker_killed_while_the_target_is_locked(machine: Machine) -> None:
    """Nobody is left to undo it; the next vram does, and says so."""
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill_both(vram)
    assert machine.state(worker.pid) == LOCKED
    machine.gpu.clear_faults()
    done = machine.vram("park")
    assert (done.stdout, "left locked" in done.stderr) == ("Nothing is parked.\n", True), done.stderr
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_vram_and_its_checkpoint_worker_killed_after_the_restore(machine: Machine) -> None:
    """Between restore and unlock the target has its memory and is paused."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    machine.gpu.fail("cuCheckpointProcessUnlock", slow_s=PATIENCE_S)
    vram = machine.start("unpark", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill_both(vram)
    machine.gpu.clear_faults()
    machine.vram("park")
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_a_checkpoint_worker_that_is_killed_is_replaced_and_the_target_unlocked(machine: Machine) -> None:
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    vram = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill(checkpoint_worker_of(vram))
    machine.gpu.clear_faults()
    assert vram.wait(PATIENCE_S) == 3
    assert runs_on(worker)
    assert machine.parked() == []


def test_ctrl_c_on_a_wait_for_room_calls_it_off(machine: Machine) -> None:
    """Its checkpoint worker leaves with it: the claim is free, and room that comes later changes nothing."""
    worker = machine.worker()
    machine.vram("park", worker.pid)
    hog = machine.program(HOG)
    waiting = machine.start("unpark", "--wait", "900s", worker.pid)
    checkpoint_worker = checkpoint_worker_of(waiting)
    until_it_has_a_claim(checkpoint_worker)
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(PATIENCE_S) == 130
    until_ended(checkpoint_worker)
    os.close(checkpoint_worker)
    hog.kill()
    assert machine.state(worker.pid) == CHECKPOINTED
    assert [line["state"] for line in machine.parked()] == ["parked"]
    assert machine.vram("unpark", worker.pid).returncode == 0
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_a_checkpoint_worker_that_is_killed_while_it_brings_back_is_replaced(machine: Machine) -> None:
    worker = machine.worker()
    machine.vram("park", worker.pid)
    machine.gpu.fail("cuCheckpointProcessUnlock", slow_s=PATIENCE_S)
    vram = machine.start("unpark", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    kill(checkpoint_worker_of(vram))
    machine.gpu.clear_faults()
    assert vram.wait(PATIENCE_S) == 0
    assert runs_on(worker)


@pytest.mark.fault(31)
def test_two_at_once_do_not_get_in_each_others_way(machine: Machine) -> None:
    """Who comes second waits up to a deadline, and is told who moves the process."""
    worker = machine.worker()
    machine.gpu.fail("cuCheckpointProcessCheckpoint", slow_s=PATIENCE_S)
    first = machine.start("park", worker.pid)
    machine.wait_for(worker.pid, LOCKED)
    with stopped(checkpoint_worker_of(first)):
        (line,) = machine.parked()
        assert line["state"] == "busy"
        for words in (("park", worker.pid), ("unpark", worker.pid)):
            second = machine.vram(*words)
            assert second.returncode == 21, second.stderr
            assert f"is being moved by pid {first.pid} (" in second.stderr
            assert "(vram-checkpoint-worker), which is stopped" in second.stderr
        machine.gpu.clear_faults()
    assert first.wait(PATIENCE_S) == 0, first.stderr.read()
    assert machine.state(worker.pid) == CHECKPOINTED


@pytest.mark.parametrize("call", ["Lock", "Checkpoint"])
def test_a_driver_that_never_returns_is_given_up_in_time(machine: Machine, call: str) -> None:
    worker = machine.worker()
    machine.gpu.fail(f"cuCheckpointProcess{call}", hang=True)
    told, checkpoint_worker = machine.api(f"""
import json
from vram.errors import TimedOut
from vram.host.local import LocalHost
from vram.reclaim.parking import Parking
from vram.reclaim.preflight import identify_parkable, read_driver
host = LocalHost()
target, shares = identify_parkable(host, read_driver(host), {worker.pid})
with Parking(host) as parking:
    checkpoint_worker = parking.worker._child.pid
    try:
        parking.park(target, shares, lock_timeout_s=0.1, deadline_s=0.4)
    except TimedOut as error:
        print(json.dumps([str(error), checkpoint_worker]))
""")
    assert "did not finish" in told
    pidfd = os.pidfd_open(checkpoint_worker)
    (line,) = machine.parked()
    assert line["state"] == "busy", "the checkpoint worker waits for the driver, and will undo what it began"
    again = machine.vram("park", worker.pid)
    assert again.returncode == 21, again.stderr
    assert f"is being moved by pid {checkpoint_worker} (" in again.stderr, "not parked already"
    kill(pidfd)
    machine.gpu.clear_faults()
    assert machine.parked() == []
    assert runs_on(worker)


@pytest.mark.fault(10)
def test_random_kills_lose_nobody(machine: Machine, tally: Tally) -> None:
    """Park, unpark and borrow in turn; vram, its worker or both killed at a random moment; in one of four
    rounds the journal is damaged after that. The target runs then, or is listed and comes back by name.
    It works all the time, and would die in a moment if it ran while its memory is away."""
    worker = machine.busy()
    for call in ("Checkpoint", "Restore", "Unlock"):
        machine.gpu.fail(f"cuCheckpointProcess{call}", slow_s=SLOW_S)
    chance = random.Random(os.environ.get("VRAM_KILLS_SEED", "20"))
    # As long as a command takes here: a moment chosen in there is one in which it is at work.
    whole_s = max(timed(machine, "park", worker.pid), timed(machine, "unpark", worker.pid))
    figures: Counter[str] = Counter(tries=KILLS)
    for _ in range(KILLS):
        figures.update(one_kill(machine, worker, chance, whole_s))
    machine.vram("unpark", worker.pid)
    assert runs_on(worker)
    print(json.dumps(dict(figures)))
    tally.count(KILLS, landed=figures["landed"])
    assert figures["landed"] > KILLS / 4, figures


def timed(machine: Machine, *words: object) -> float:
    began = time.monotonic()
    assert machine.vram(*words).returncode == 0
    return time.monotonic() - began


def one_kill(machine: Machine, worker: Program, chance: random.Random, whole_s: float) -> Iterator[str]:
    """One round: what came of it, in the words of the figures."""
    pid = worker.pid
    words = ("unpark", pid) if machine.state(pid) == CHECKPOINTED else ("park", pid)
    if words[0] == "park" and chance.random() < 0.3:
        words = ("borrow", "139.5GiB", "--", "true")
    vram = machine.start(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    checkpoint_worker = checkpoint_worker_if_any(vram)
    victim = chance.choice(("vram", "worker", "both"))
    try:
        if chance.random() < 0.3:
            vram.wait(chance.uniform(0.0, whole_s))
        else:
            machine.until_somebody_moves(pid, vram)
            vram.wait(chance.uniform(0.0, MOVE_S))
    except subprocess.TimeoutExpired:
        yield "landed"
        yield f"{words[0]}: {victim} killed"
    if victim == "both" and checkpoint_worker:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(checkpoint_worker, signal.SIGSTOP)
    if victim in ("vram", "both"):
        vram.kill()
    if victim in ("worker", "both") and checkpoint_worker:
        kill(checkpoint_worker)
    elif checkpoint_worker:
        os.close(checkpoint_worker)
    vram.wait(PATIENCE_S)
    machine.until_nobody_moves(pid)
    if machine.state(pid) == LOCKED:
        yield "left locked"
    if chance.random() < 0.25:
        yield from damage_the_journal(machine, chance)
    yield from way_back(machine, worker)


def damage_the_journal(machine: Machine, chance: random.Random) -> Iterator[str]:
    for file in (machine.state_home / "vram").glob("parked-*.json"):
        if chance.random() < 0.5:
            file.unlink()
            yield "entries deleted"
        else:
            os.truncate(file, chance.randrange(file.stat().st_size - 1))
            yield "entries cut"


def way_back(machine: Machine, worker: Program) -> Iterator[str]:
    """The target runs, or `vram park` lists it; one that only the driver tells of comes back by name."""
    lines = machine.parked()
    state = machine.state(worker.pid)
    assert [line["pid"] for line in lines] == [worker.pid] * (state != RUNNING), (state, lines)
    if state == RUNNING:
        assert runs_on(worker)
        yield "ran on"
    elif lines[0]["known_from"] == "driver":
        assert machine.vram("unpark", worker.pid).returncode == 0
        assert runs_on(worker)
        yield "found by asking the driver"
    else:
        assert state == CHECKPOINTED
        yield "listed as parked"

"""Row 31: two vrams want the same at the same moment: one does it, the other leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.faults.record import Tally
from tests.ghosts.conftest import held_by
from tests.parking.conftest import CHECKPOINTED, RUNNING, Machine, runs_on
from tests.patience import PATIENCE_S
from tests.reclaim.conftest import Bench
from vram.units import GIB

CANNOT, GONE, CHANGED, NO_ROOM, TIMED_OUT = 20, 10, 15, 19, 21
ROUNDS = max(2, int(os.environ.get("VRAM_KILLS", "0")) // 10)


def both(machine: Machine, *words: object) -> list[int]:
    """The exit codes of two that were started at the same moment, smaller first."""
    pair = [machine.start(*words) for _ in range(2)]
    said = [each.communicate(timeout=PATIENCE_S)[1] for each in pair]
    assert not any("Traceback" in each for each in said), said
    return sorted(each.returncode for each in pair)


@pytest.mark.fault(31)
def test_one_parks_and_one_brings_back(parking_machine: Machine, tally: Tally) -> None:
    machine = parking_machine
    machine.gpu.fail("cuCheckpointProcess*", slow_s=0.05)
    worker = machine.worker()
    for verb, state in (("park", CHECKPOINTED), ("unpark", RUNNING)) * ROUNDS:
        before = len(machine.audit())
        codes = both(machine, verb, worker.pid)
        outcomes = [each for each in machine.audit()[before:] if each.get("status") == "done"]
        # Whoever comes when it runs again asks the driver how it stands, and has nothing to do.
        moves = [each["call"] for each in outcomes if not each["call"].endswith("GetState")]
        leaves = (CANNOT, TIMED_OUT) if verb == "park" else (0, CANNOT, TIMED_OUT)
        is_right = codes[0] == 0 and codes[1] in leaves and len(moves) == 1
        wrong = int(not is_right or machine.state(worker.pid) != state)
        tally.count(wrong=wrong)
        assert not wrong, (verb, codes, outcomes)
    assert runs_on(worker)
    assert machine.parked() == []


@pytest.mark.fault(31)
def test_two_borrowers_of_one_lender(parking_machine: Machine, tally: Tally) -> None:
    machine = parking_machine
    worker = machine.worker()
    for _ in range(ROUNDS):
        codes = both(machine, "borrow", "139.5GiB", "--", "sleep", "0.2")
        wrong = int(
            codes[0] != 0 or codes[1] not in (0, CANNOT, NO_ROOM, TIMED_OUT) or bool(machine.parked())
        )
        tally.count(wrong=wrong)
        assert not wrong, codes
    assert runs_on(worker)


@pytest.mark.fault(31)
@pytest.mark.parametrize("verb", ["kill", "free"])
def test_two_that_end_the_same_process_end_nobody_else(machine: Bench, verb: str, tally: Tally) -> None:
    healthy = machine.demo("memory.plain", GIB)
    for _ in range(ROUNDS):
        orphan = machine.demo("forks.orphan", GIB)
        orphan.kill("parent")
        child = orphan.pids["child"]
        words = {"kill": ("kill", str(child)), "free": ("free", "--up-to", "kill")}[verb]
        pair = [start(machine, *words, "--yes") for _ in range(2)]
        said = [each.communicate(timeout=PATIENCE_S) for each in pair]
        codes = sorted(each.returncode for each in pair)
        wrong = int(codes[0] != 0 or codes[1] not in (0, GONE, CHANGED))
        tally.count(wrong=wrong)
        assert not wrong, (codes, said)
        orphan.close()
    ended = [each["step"] for each in machine.audit() if each["event"] == "intend"]
    targets = {each["target"]["process"]["pid"] for each in ended if each["kind"] == "kill"}
    assert len(targets) == ROUNDS
    assert held_by(machine.why(), healthy.pids["self"]) > GIB


def start(machine: Bench, *words: str) -> subprocess.Popen[bytes]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return machine.popen([sys.executable, "-m", "vram", *words], **pipes)

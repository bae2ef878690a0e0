"""Ghosts together, and among processes that come and go: still each is named, still it balances."""

from __future__ import annotations

import threading

import pytest

from tests.ghosts.conftest import Machine, entries, finding, held_by, is_charge
from vram.units import GIB, MIB


@pytest.mark.fault(6)
def test_all_ghosts_at_once(machine: Machine):
    orphan = machine.demo("forks.orphan", 4 * GIB)
    orphan.kill("parent")
    second = machine.demo("forks.orphan", 2 * GIB)
    second.kill("parent")
    handle = machine.demo("exports.handle", 3 * GIB, stages=2)
    dmabuf = machine.demo("exports.dmabuf", 1 * GIB, stages=2)
    ipc = machine.demo("imports.ipc", 5 * GIB, stages=2)
    stopped = machine.demo("signals.stopped", 2 * GIB)
    answer = machine.why()
    assert is_charge(finding(answer, "VR101", orphan.pids["child"])["nbytes"], 4 * GIB)
    assert is_charge(finding(answer, "VR101", second.pids["child"])["nbytes"], 2 * GIB)
    assert finding(answer, "VR103", handle.pids["holder"])["nbytes"] == 3 * GIB
    assert finding(answer, "VR104", dmabuf.pids["holder"])["nbytes"] == 1 * GIB
    assert is_charge(held_by(answer, ipc.pids["importer"]), 5 * GIB)
    assert is_charge(finding(answer, "VR201", stopped.pids["worker"])["nbytes"], 2 * GIB)
    assert not entries(answer, "unattributed")


def test_two_exported_allocations_are_told_apart_by_their_sizes(machine: Machine):
    large = machine.demo("exports.handle", 3 * GIB, stages=2)
    small = machine.demo("exports.handle", 64 * MIB, stages=2)
    answer = machine.why()
    assert held_by(answer, large.pids["holder"]) == 3 * GIB
    assert held_by(answer, small.pids["holder"]) == 64 * MIB


@pytest.mark.fault(11)
def test_the_sum_holds_while_processes_come_and_go(machine: Machine):
    """One thread starts and ends GPU processes all the while that others are asked about them."""
    done = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        while not done.is_set():
            try:
                with machine.demo("forks.orphan", 1 * GIB) as demo:
                    demo.kill("parent")
            except BaseException as error:
                failures.append(error)
                return

    others = threading.Thread(target=churn)
    others.start()
    try:
        answers = [machine.why() for _ in range(8)]
    finally:
        done.set()
        others.join()
    assert not failures
    assert len(answers) == 8


def test_the_holder_of_a_living_makers_memory_is_left_alone(machine: Machine):
    healthy = machine.demo("exports.handle", 1 * GIB, stages=1)
    ghost = machine.demo("exports.handle", 1 * GIB, stages=2)
    answer = machine.why()
    (exported,) = entries(answer, "exported")
    assert (exported["holder"]["pid"], exported["confidence"]) == (ghost.pids["holder"], "likely")
    assert finding(answer, "VR102", healthy.pids["holder"])["nbytes"] == 1 * GIB
    machine.vram("free", "--finding", "VR103", "--yes")
    assert held_by(machine.why(), ghost.pids["holder"]) == 1 * GIB

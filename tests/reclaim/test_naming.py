"""Whom a pid on the command line means: a dead one its holders, and with --tree a family."""

from __future__ import annotations

import json

import pytest

from tests.ghosts.conftest import held_by, is_charge
from tests.reclaim.conftest import Bench
from vram.model.process import ParkedProcess
from vram.report.phrases import parked_process
from vram.units import GIB


def test_a_dead_pid_that_the_driver_lists_means_who_holds_its_memory(machine: Bench):
    demo = machine.demo("forks.orphan", 1 * GIB)
    dead, child = demo.pids["parent"], demo.pids["child"]
    demo.kill("parent")
    answer = machine.ask("kill", str(dead), "--yes")
    (step,) = answer["plan"]["steps"]
    assert (step["target"]["process"]["pid"], step["reason"]) == (
        child,
        f"pid {dead} is dead, and this process holds its memory",
    )
    assert answer["receipt"]["returned_bytes"] >= GIB


def test_free_takes_a_dead_pid_too_and_a_holder_that_is_named(machine: Bench):
    demos = [machine.demo("forks.orphan", 1 * GIB) for _ in range(2)]
    for demo in demos:
        demo.kill("parent")
    by_dead = machine.ask("free", "--pid", str(demos[0].pids["parent"]), "--yes")
    by_holder = machine.ask("free", "--from", str(demos[1].pids["child"]), "--yes")
    for answer in (by_dead, by_holder):
        assert [step["kind"] for step in answer["plan"]["steps"]] == ["kill"]
        assert answer["receipt"]["returned_bytes"] >= GIB


def workers_of_a_dead_parent(machine: Bench) -> list[int]:
    demo = machine.demo("forks.pool", 2 * GIB)
    demo.kill("parent")
    return sorted(pid for name, pid in demo.pids.items() if name != "parent")


@pytest.mark.parametrize("words", [("kill",), ("free", "--pid")])
def test_one_of_four_that_hold_a_leftover_means_all_of_them(machine: Bench, words: tuple[str, ...]):
    workers = workers_of_a_dead_parent(machine)
    neighbour = machine.demo("memory.plain", GIB).pids["self"]
    answer = machine.ask(*words, str(workers[2]), "--yes")
    assert sorted(step["target"]["process"]["pid"] for step in answer["plan"]["steps"]) == workers
    assert answer["receipt"]["returned_bytes"] >= 2 * GIB
    assert is_charge(held_by(machine.why(), neighbour), GIB)


def test_only_means_that_one_alone_and_promises_nothing(machine: Bench):
    workers = workers_of_a_dead_parent(machine)
    answer = machine.ask("kill", str(workers[2]), "--only", "--dry-run")
    (step,) = answer["plan"]["steps"]
    assert (step["target"]["process"]["pid"], step["predicted_bytes"]) == (workers[2], 0)
    assert "shared memory stays until" in step["reason"]


def test_a_dead_pid_that_nobody_lists_is_no_process(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    demo.kill("self")
    assert machine.vram("kill", str(pid), "--yes").returncode == 10


def test_tree_takes_the_children_along_and_the_memory_comes_back(machine: Bench):
    demo = machine.demo("forks.orphan", 1 * GIB)
    parent, child = demo.pids["parent"], demo.pids["child"]
    answer = machine.ask("kill", str(parent), "--tree", "--yes")
    assert [step["target"]["process"]["pid"] for step in answer["plan"]["steps"]] == [parent, child]
    assert answer["receipt"]["returned_bytes"] >= GIB


def test_the_first_process_is_refused_in_true_words(machine: Bench):
    done = machine.vram("kill", "1", "--yes")
    assert done.returncode == 13
    assert "pid 1 is the first process of the system" in done.stderr
    assert "whole machine or container" in done.stderr
    assert not [each for each in machine.audit() if each["event"] != "refused"]


def test_who_and_check_name_the_command_that_gives_leftovers_back(machine: Bench):
    demo = machine.demo("forks.orphan", 1 * GIB)
    assert "vram free" not in machine.vram("who").stdout
    demo.kill("parent")
    assert machine.vram("who").stdout.endswith(": vram free\n")
    assert machine.vram("check").stdout.endswith(": vram free\n")
    assert json.loads(machine.vram("who", "--json").stdout)["free_command"] == "vram free"
    assert machine.vram("free", "--yes").returncode == 0
    assert machine.vram("check").returncode == 0


def test_a_parked_process_is_shown_as_parked(machine: Bench):
    demo = machine.demo("memory.plain", 1 * GIB)
    pid = demo.pids["self"]
    assert machine.vram("park", str(pid)).returncode == 0
    try:
        (row,) = [line.split() for line in machine.vram("why").stdout.splitlines() if str(pid) in line]
        assert "parked" in row
        for words in (("who",), ("why", "-v")):
            shown = " ".join(machine.vram(*words).stdout.split())
            assert f"pid {pid}" in shown.partition("arked: paused")[2], words
        (parked,) = machine.why()["parked"]
        assert (parked["pid"], parked["lent_to"]) == (pid, None)
        assert is_charge(parked["nbytes"], 1 * GIB)
        (step,) = machine.ask("kill", str(pid), "--dry-run")["plan"]["steps"]
        assert "is parked" in step["reason"]
    finally:
        assert machine.vram("unpark", str(pid)).returncode == 0
    assert is_charge(held_by(machine.why(), pid), 1 * GIB)
    assert machine.why()["parked"] == []


def test_a_process_that_was_lent_says_to_whom():
    lent = ParkedProcess(pid=7, user="alice", command="serve", nbytes=GIB, gpus=(0,), since="", lent_to=9)
    assert parked_process(lent) == "pid 7 · alice · 1.0 GiB · lent to pid 9"

"""``vram free``: every ghost freed by the name of its finding, the healthy left alone."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ghosts.conftest import held_by, is_charge
from tests.needs import skip_without
from tests.patience import PATIENCE_S, until_readable
from tests.reclaim.conftest import Bench
from tests.search_path import search_path
from vram.units import GIB
from vram.virtualgpu.demos import PROGRAMS

GHOSTS = {
    "VR101": ("forks.orphan", 0, "child", "parent"),
    "VR103": ("exports.handle", 2, "holder", None),
    "VR104": ("exports.dmabuf", 2, "holder", None),
    "VR201": ("signals.stopped", 0, "worker", None),
}
BY_NAME = ("VR103", "VR104")


def ghost(machine: Bench, code: str, nbytes: int) -> int:
    """Raise a ghost; return the pid of its holder."""
    program, stages, holder, dies = GHOSTS[code]
    demo = machine.demo(program, nbytes, stages=stages)
    if dies:
        demo.kill(dies)
    return demo.pids[holder]


def all_ghosts_freed(machine: Bench) -> Iterator[tuple[dict, float]]:
    """Ghosts of every kind beside a worker, freed in two steps; yields each answer and its seconds.

    Who holds exported memory is ended only by name: it may have received it from somebody else.
    """
    worker = machine.demo("memory.plain", 1 * GIB).pids["self"]
    holders = {code: ghost(machine, code, 2 * GIB) for code in GHOSTS}
    named = [word for code in BY_NAME for word in ("--pid", str(holders[code]))]
    for codes, goal, words in (
        (("VR101", "VR201"), 4, ("--finding", "VR101", "--finding", "VR201")),
        (BY_NAME, 4, (*named, "--up-to", "kill")),
    ):
        began = time.monotonic()
        answer = machine.ask("free", "--more", f"{goal}GiB", *words, "--yes")
        yield answer, time.monotonic() - began
        assert sorted(pid for _, pid in kinds(answer)) == sorted(holders[code] for code in codes)
        assert answer["receipt"]["returned_bytes"] >= goal * GIB
        os.kill(worker, 0)


def kinds(answer: dict) -> list[tuple[str, int]]:
    return [(step["kind"], step["target"]["process"]["pid"]) for step in answer["plan"]["steps"]]


@pytest.mark.parametrize("code", ["VR101", "VR201"])
def test_a_ghost_is_ended_by_the_name_of_its_finding(machine: Bench, code: str):
    holder = ghost(machine, code, 2 * GIB)
    answer = machine.ask("free", "--finding", code, "--yes")
    assert kinds(answer) == [("kill", holder)]
    receipt = answer["receipt"]
    assert receipt["outcomes"][0]["status"] == "done"
    assert receipt["returned_bytes"] >= receipt["promised_bytes"] >= 2 * GIB
    assert machine.vram("check", "--leftovers").returncode == 0


@pytest.mark.parametrize("words", [(), ("--finding", "VR103", "--finding", "VR104")], ids=str)
@pytest.mark.parametrize("code", BY_NAME)
def test_who_holds_a_handle_is_ended_only_by_name(machine: Bench, code: str, words: tuple[str, ...]):
    """Anybody can hand one to a service that takes descriptors, and be gone."""
    holder = ghost(machine, code, 2 * GIB)
    done = machine.vram("free", *words, "--yes", "--json")
    (left,) = json.loads(done.stdout)["skipped"]
    assert (done.returncode, left["pid"], left["command"]) == (1, holder, "")
    assert "may have received" in left["why"]
    os.kill(holder, 0)
    assert kinds(machine.ask("kill", str(holder), "--yes")) == [("kill", holder)]
    assert machine.vram("check", "--leftovers").returncode == 0


def test_all_ghosts_at_once_are_freed_and_a_worker_among_them_is_not(machine: Bench):
    assert len(list(all_ghosts_freed(machine))) == 2


def test_a_zombies_children_are_ended_and_the_zombie_is_left_as_it_is(machine: Bench):
    demo = machine.demo("forks.orphan", 1 * GIB)
    pidfd = os.pidfd_open(demo.pids["parent"])
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    os.close(pidfd)
    answer = machine.ask("free", "--finding", "VR203", "--yes")
    assert kinds(answer) == [("kill", demo.pids["child"])]
    assert is_charge(answer["receipt"]["returned_bytes"], 1 * GIB)


def test_a_healthy_process_is_never_ended_however_much_is_asked_for(machine: Bench):
    """Even where nothing else could reach the goal: then it is refused."""
    busy = machine.demo("memory.plain", 8 * GIB)
    ghost(machine, "VR101", 1 * GIB)
    done = machine.vram("free", "--more", "20GiB", "--up-to", "kill", "--yes")
    assert done.returncode == 19
    assert "cannot free" in done.stderr
    assert is_charge(held_by(machine.why(), busy.pids["self"]), 8 * GIB)
    assert not machine.audit()


def test_without_size_or_name_all_leftovers_are_freed(machine: Bench):
    holders = {ghost(machine, "VR101", 1 * GIB) for _ in range(3)}
    answer = machine.ask("free", "--yes")
    assert {pid for kind, pid in kinds(answer) if kind == "kill"} == holders
    assert machine.vram("check", "--leftovers").returncode == 0


def test_up_to_trim_leaves_leftovers_and_says_how_to_free_them(machine: Bench):
    holder = ghost(machine, "VR101", 1 * GIB)
    done = machine.vram("free", "--up-to", "trim", "--yes", "--json")
    (left,) = [each for each in json.loads(done.stdout)["skipped"] if each["pid"] == holder]
    assert (done.returncode, left["command"], left["leftover"]) == (1, "vram free", True)


def test_a_stopped_job_is_left_alone_and_the_way_to_let_it_go_on_is_told(machine: Bench):
    stopped = ghost(machine, "VR201", 1 * GIB)
    done = machine.vram("free", "--yes", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["plan"]["steps"]) == (0, [])
    assert [each["command"] for each in answer["skipped"]] == [f"kill -CONT {stopped}"]


def available(machine: Bench) -> int:
    (gpu,) = machine.why()["gpus"]
    return sum(entry["nbytes"] for entry in gpu["entries"] if entry["kind"] == "free")


def test_a_size_that_is_available_already_is_one_line_and_no_plan(machine: Bench):
    ghost(machine, "VR101", 1 * GIB)
    done = machine.vram("free", "20GiB", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "20.0 GiB is available on GPU 0 already: nothing to do.\n"
    assert not machine.audit()


def test_a_size_is_what_is_available_afterwards_and_no_more_is_ended_than_it_lacks(machine: Bench):
    small, large = (ghost(machine, "VR101", nbytes) for nbytes in (2 * GIB, 6 * GIB))
    wanted = available(machine) + 1 * GIB
    answer = machine.ask("free", f"{wanted}B", "--yes")
    assert kinds(answer) == [("kill", small)]
    assert (answer["plan"]["available_bytes"], answer["plan"]["goal_bytes"]) == (wanted, 1 * GIB)
    assert available(machine) >= wanted
    assert is_charge(held_by(machine.why(), large), 6 * GIB)


def test_what_neighbours_take_or_leave_after_the_plan_counts_when_it_runs(machine: Bench, tmp_path: Path):
    """Exit code 0 means that the size is available, not that so much was freed."""
    holder = ghost(machine, "VR101", 2 * GIB)
    wanted, saved = f"{available(machine) + 1 * GIB}B", str(tmp_path / "plan.json")
    assert kinds(machine.ask("free", wanted, "--dry-run", "--save", saved)) == [("kill", holder)]
    neighbour = machine.demo("memory.plain", 4 * GIB)
    done = machine.vram("free", "--plan", saved, "--yes", "--json")
    (outcome,) = json.loads(done.stdout)["receipt"]["outcomes"]
    assert (done.returncode, outcome["status"]) == (3, "refused")
    assert is_charge(held_by(machine.why(), holder), 2 * GIB)
    neighbour.close()
    assert machine.vram("free", "--plan", saved, "--yes").returncode == 0
    assert available(machine) >= int(wanted.removesuffix("B"))


def test_more_than_can_be_available_is_refused_and_says_what_could_be_allowed(machine: Bench):
    machine.demo("memory.plain", 8 * GIB)
    done = machine.vram("free", f"{available(machine) + 4 * GIB}B", "--yes")
    assert done.returncode == 19
    assert "would be available" in done.stderr
    assert "--caches" in done.stderr
    assert not machine.audit()


def test_live_processes_are_visited_only_with_caches_and_after_the_leftovers(machine: Bench):
    idle = machine.demo("memory.plain", 4 * GIB).pids["self"]
    holder = ghost(machine, "VR101", 1 * GIB)
    assert kinds(machine.ask("free", "--dry-run")) == [("kill", holder)]
    assert kinds(machine.ask("free", "--caches", "--dry-run")) == [("kill", holder), ("trim", idle)]


KEEPS_THE_LOCK = """
import ctypes, driver
driver.context()
driver.alloc(1 << 30)
print("ready", flush=True)
ctypes.PyDLL(None).pause()
"""


def test_servers_that_keep_the_interpreters_lock_are_a_line_and_no_failure(machine: Bench):
    """Their Python never reaches a safe point: what can be freed is, and the answer says the rest."""
    holder = ghost(machine, "VR101", 1 * GIB)
    environment = machine.environment(PYTHONPATH=search_path(PROGRAMS))
    argv = [sys.executable, "-c", KEEPS_THE_LOCK]
    servers = [subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        assert [server.stdout.readline() for server in servers] == [b"ready\n"] * 2
        answer = machine.ask("free", "--caches", "--yes")
        statuses = [(each["step"]["kind"], each["status"]) for each in answer["receipt"]["outcomes"]]
        assert statuses == [("kill", "done"), ("trim", "refused"), ("trim", "refused")]
        assert kinds(answer)[0] == ("kill", holder)
        assert all(server.poll() is None for server in servers)
    finally:
        for server in servers:
            server.kill()
            server.communicate()


def test_idle_processes_are_parked_only_where_that_is_asked_for(machine: Bench):
    idle = machine.demo("memory.plain", 4 * GIB).pids["self"]
    caches = ("free", "--more", "2GiB", "--caches", "--dry-run")
    assert kinds(machine.ask(*caches)) == [("trim", idle)]
    assert machine.vram("free", "--more", "8GiB", "--dry-run").returncode == 19
    # What it only caches is asked for first: then it need not be paused.
    assert kinds(machine.ask(*caches, "--park-idle")) == [("trim", idle), ("park", idle)]


def test_no_more_is_ended_than_the_goal_needs(machine: Bench):
    holders = {ghost(machine, "VR101", size): size for size in (3 * GIB, 1 * GIB, 2 * GIB)}
    answer = machine.ask("free", "--more", "2GiB", "--up-to", "kill", "--finding", "VR101", "--yes")
    assert [holders[pid] for _, pid in kinds(answer)] == [2 * GIB]
    assert is_charge(answer["receipt"]["returned_bytes"], 2 * GIB)


def test_it_stops_when_the_device_says_that_the_goal_is_met(machine: Bench):
    """The first of two frees more than promised: what a context costs beyond its charge."""
    first, second = (ghost(machine, "VR201", 1 * GIB) for _ in range(2))
    goal = f"{held_by(machine.why(), first) + 1}B"
    answer = machine.ask("free", "--more", goal, "--finding", "VR201", "--yes")
    assert kinds(answer) == [("kill", first), ("kill", second)]
    receipt = answer["receipt"]
    assert [each["status"] for each in receipt["outcomes"]] == ["done", "not-needed"]
    assert receipt["returned_bytes"] >= int(goal.removesuffix("B"))
    assert is_charge(held_by(machine.why(), second), 1 * GIB)


def test_of_several_that_are_named_no_more_are_touched_than_the_goal_needs(machine: Bench):
    """What they only cache is asked for first; the smaller one is enough to be parked."""
    demos = [machine.demo("memory.plain", size) for size in (2 * GIB, 4 * GIB)]
    small, large = (demo.pids["self"] for demo in demos)
    answer = machine.ask("free", "--more", "1GiB", "--pid", str(large), "--pid", str(small), "--dry-run")
    assert kinds(answer) == [("trim", large), ("trim", small), ("park", small)]


def test_a_holder_that_also_works_is_skipped(machine: Bench):
    """It holds a dead process's memory, and its own: ending it would end work."""
    demo = machine.demo("forks.orphan", 1 * GIB)
    answer = machine.ask("free", "--finding", "VR102", "--up-to", "kill", "--yes")
    assert kinds(answer) == [("trim", demo.pids["parent"])]


def test_without_a_terminal_and_without_yes_it_only_plans(machine: Bench):
    holder = ghost(machine, "VR101", 1 * GIB)
    done = machine.vram("free", "--finding", "VR101")
    assert done.returncode == 1
    assert "Nothing was touched. --yes runs this plan." in done.stdout
    assert is_charge(held_by(machine.why(), holder), 1 * GIB)
    assert not machine.audit()


@pytest.mark.parametrize(("answer", "ends"), [("n", False), ("", False), ("yes", True)])
def test_a_person_at_a_terminal_is_asked(machine: Bench, answer: str, ends: bool):
    holder = ghost(machine, "VR101", 1 * GIB)
    shown, code = at_a_terminal(machine, ["free", "--finding", "VR101"], answer)
    assert code == (0 if ends else 1)
    assert "Proceed? [y/N]" in shown
    assert f"pid {holder}" in shown
    assert ("expected 1.5 GiB · freed" in shown) is ends
    assert bool(machine.audit()) is ends


def at_a_terminal(machine: Bench, words: list[str], answer: str) -> tuple[str, int]:
    ours, theirs = pty.openpty()
    environment = machine.environment(NO_COLOR="1", COLUMNS="100")
    program = subprocess.Popen(
        [sys.executable, "-m", "vram", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    while b"[y/N]" not in shown:
        until_readable(ours, lambda shown=shown: shown)
        shown += os.read(ours, 4096)
    os.write(ours, answer.encode() + b"\n")
    while True:
        until_readable(ours, lambda shown=shown: shown)
        try:
            part = os.read(ours, 4096)
        except OSError:  # nobody is left at the other end
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return shown.decode(), program.wait(PATIENCE_S)


def test_every_action_is_written_down_before_and_after(machine: Bench):
    holder = ghost(machine, "VR101", 1 * GIB)
    answer = machine.ask("free", "--finding", "VR101", "--yes")
    before, after = machine.audit()
    assert (before["event"], after["event"]) == ("intend", "outcome")
    assert before["token"] == after["token"]
    assert before["digest"] == answer["plan"]["digest"]
    assert before["step"]["target"]["process"]["pid"] == holder
    assert (after["status"], before["used_before"] - after["used_after"]) == (
        "done",
        answer["receipt"]["returned_bytes"],
    )


def test_a_plan_runs_by_its_digest_alone(machine: Bench):
    ghost(machine, "VR101", 1 * GIB)
    digest = machine.ask("free", "--finding", "VR101", "--dry-run")["plan"]["digest"]
    ran = machine.ask("free", "--finding", "VR101", "--yes", "--digest", digest[:12])
    assert ran["receipt"]["digest"] == digest


def test_a_digest_that_does_not_fit_is_refused(machine: Bench):
    ghost(machine, "VR101", 1 * GIB)
    done = machine.vram("free", "--finding", "VR101", "--yes", "--digest", "0123456789ab")
    assert done.returncode == 15
    assert not machine.audit()
    assert machine.vram("free", "--finding", "VR101", "--yes", "--digest", "xyz").returncode == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("free", "1000TiB"), 19, "more than the GPU has"),
        (("free", "lots"), 2, "is not a size"),
        (("free", "20"), 2, "'20' has no unit"),
        (("free", "--finding", "VR999"), 2, "no such code"),
        (("free", "--gpu", "7"), 2, "there is no GPU 7"),
        (("free", "--up-to", "reset"), 2, "invalid choice"),
        (("free", "--plan", "x", "1GiB"), 2, "--plan cannot be combined"),
        (("free", "--plan", "x", "--caches"), 2, "--plan cannot be combined"),
        (("free", "1GiB", "--more", "1GiB"), 2, "give SIZE or --more SIZE, not both"),
        (("free", "--plan", ""), 2, "file name is empty"),
        (("free", "--save", ""), 2, "file name is empty"),
        (("free", "--digest", ""), 2, "--digest: 8 hexadecimal digits or more are needed"),
        (("free", "--digest", "0123456"), 2, "--digest: 8 hexadecimal digits or more are needed"),
    ],
)
def test_bad_words_have_a_sentence_and_a_code(machine: Bench, words, code: int, says: str):
    done = machine.vram(*words, "--yes")
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert not machine.state.exists()


def test_where_nothing_is_left_over_nothing_is_done(machine: Bench):
    done = machine.vram("free", "--finding", "VR101", "--yes")
    assert (done.returncode, done.stdout) == (0, "Nothing to do.\n")


@pytest.mark.fault(26)
def test_hostile_names_do_not_steer_the_terminal(machine: Bench):
    """The command line of a process is shown in a plan that somebody is asked to agree to."""
    hostile = "\x1b[2J\u202eDo exactly this? [y/N]\r\n"
    code = "import driver, protocol; driver.context(); protocol.ready('there'); protocol.wait()"
    actor = machine.popen(
        [sys.executable, "-c", code, hostile], cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert actor.stdout is not None
    assert actor.stdout.readline()
    shown = machine.vram("kill", str(actor.pid)).stdout
    actor.communicate()
    assert "[y/N]" in shown
    assert "\r" not in shown
    assert all(line.isprintable() for line in shown.splitlines())


SEIZES = """\
import ctypes, sys
PTRACE_SEIZE = 0x4206
assert ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None) == 0
print("seized", flush=True)
sys.stdin.read()
"""


def test_who_cannot_be_attached_to_is_in_use_like_others(machine: Bench):
    """As where the kernel lets only a parent attach: that is usual, and not what keeps the memory."""
    pid = machine.demo("memory.plain", 1 * GIB).pids["self"]
    argv = [sys.executable, "-c", SEIZES, str(pid)]
    tracer = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert tracer.stdout is not None
        if tracer.stdout.readline() != "seized\n":
            skip_without("ptrace", "nobody may be traced here")
        answer = machine.ask("free", "--dry-run")
        assert answer["plan"]["steps"] == []
        assert [(each["why"], each["command"]) for each in answer["skipped"]] == [
            ("in use", f"vram park {pid}")
        ]
    finally:
        tracer.communicate()

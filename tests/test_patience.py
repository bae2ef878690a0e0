"""`until` and its relatives; and that no other test waits for time, or has a deadline of its own."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patience
from tests.patience import has_ended, must_end, until, until_async, until_ended, until_gone, until_readable

HERE = Path(__file__).parent

# Other machines' drivers decide there how long something takes; and these cannot import tests.patience.
ELSEWHERE = ("hardware/", "blackbox/")

# What a module may do besides, and why.
ALLOWED = {
    "patience.py": "the one place for it",
    "faults/sweep.py": "a program of its own; vram's deadline, which is not to expire",
    "host/leaderless.py": "also a program of its own, without this folder on its path",
    "inside/programs/subject.py": "runs in other interpreters",
    "inside/programs/waiting.py": "runs in other interpreters: its thread beats until the end",
    "probes/take_survey.py": "a program of its own: it looks between two states of a process",
    "reach/target_program.py": "runs in other interpreters",
    "reclaim/shared_machine.py": "a program that another user runs, without this folder on its path",
    "reclaim/churn.py": "a program of its own; beside shared_machine.py",
    "slurm/supervisor.py": "a program of its own: it kills until nobody is left",
    "tracer/stack_checks.py": "runs in other interpreters",
    "untrusted/test_untrusted.py": "a timeout of a socket that must not count",
    "virtualgpu/cupti/answers.py": "runs in other interpreters, also on real hardware",
}

OWN_DEADLINE = re.compile(r"(PATIEN\w*|LONG\w*|DEADLINE|TIMEOUT|GIVE\w*_UP|WAIT\w*|SOON)_S")
# A literal of so many seconds or more is meant for what must happen some time. Shorter ones must expire.
LONG_S = 5


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never happens is given up soon."""
    monkeypatch.setattr(patience, "PATIENCE_S", 0.05)


# ---- waiting ----


def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, None, "", "at last", "later"])
    assert until(lambda: next(answers)) == "at last"


@pytest.mark.usefixtures("impatient")
def test_what_never_happens_fails_with_its_last_answer_and_with_what_was_seen() -> None:
    with pytest.raises(AssertionError, match=r"within 0\.05 s: it stayed \[\]; seen: two ghosts"):
        until(list, lambda: "two ghosts")


def test_an_error_is_not_waited_out() -> None:
    with pytest.raises(ZeroDivisionError):
        until(lambda: 1 // 0)


@pytest.mark.usefixtures("impatient")
def test_the_last_look_begins_after_the_deadline() -> None:
    """Who was not given the processor for that long has not failed."""
    answers = iter([False, True])
    assert until(lambda: time.sleep(0.1) or next(answers))


def test_an_event_loop_runs_on() -> None:
    async def scene() -> str:
        heard: list[str] = []
        asyncio.get_running_loop().call_later(0.001, heard.append, "it ran")
        return (await until_async(lambda: heard))[0]

    assert asyncio.run(scene()) == "it ran"


@pytest.mark.usefixtures("impatient")
def test_in_an_event_loop_it_fails_the_same_way() -> None:
    with pytest.raises(AssertionError, match="it stayed None; seen: nothing"):
        asyncio.run(until_async(lambda: None, lambda: "nothing"))


def test_a_pipe_can_be_read_when_something_is_in_it_or_nobody_writes_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x")
    until_readable(reading)
    os.read(reading, 1)
    with monkeypatch.context() as soon:
        soon.setattr(patience, "PATIENCE_S", 0.01)
        with pytest.raises(AssertionError, match="nothing to read; seen: b''"):
            until_readable(reading, lambda: b"")
    os.close(writing)
    until_readable(reading)
    os.close(reading)


def test_the_end_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    pidfd = os.pidfd_open(process.pid)
    with monkeypatch.context() as soon:
        soon.setattr(patience, "PATIENCE_S", 0.01)
        with pytest.raises(AssertionError, match=f"pid {process.pid} runs on"):
            until_ended(pidfd)
    assert not has_ended(pidfd)
    process.kill()
    until_ended(pidfd)
    assert has_ended(pidfd)
    until_gone(process.pid)  # a zombie
    process.wait()
    until_gone(process.pid)  # nobody
    os.close(pidfd)


@pytest.mark.usefixtures("impatient")
def test_what_does_not_end_is_interrupted() -> None:
    usual = signal.getsignal(signal.SIGALRM)
    with pytest.raises(AssertionError, match="did not end"), must_end():
        signal.pause()
    assert signal.getsignal(signal.SIGALRM) is usual
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


# ---- nobody waits otherwise ----


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(HERE.rglob("*.py")):
        name = path.relative_to(HERE).as_posix()
        if not name.startswith(ELSEWHERE) and name not in ALLOWED and path != Path(__file__):
            yield name, ast.parse(path.read_bytes())


def calls(tree: ast.AST, *names: str) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in names for node in ast.walk(tree))


def is_long(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value >= LONG_S


def own_deadline(node: ast.AST) -> bool:
    """``PATIENCE_S = 60.0``"""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and any(isinstance(name, ast.Name) and OWN_DEADLINE.fullmatch(name.id) for name in node.targets)
    )


def polls(node: ast.AST) -> bool:
    """``while ...: time.sleep(...)``"""
    return isinstance(node, ast.While) and calls(node, "time.sleep", "asyncio.sleep", "os.sched_yield")


def upper_bound(node: ast.AST) -> bool:
    """``time.monotonic() - began < 2.0``. A lower bound is not a matter of luck."""
    return (
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Lt | ast.LtE)
        and calls(node.left, "time.monotonic", "time.perf_counter", "time.time")
    )


def long_wait(node: ast.AST) -> bool:
    """``run(..., timeout=60)``, ``process.wait(60)``, ``select.select([fd], [], [], 60)``"""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    waits = name.endswith((".wait", ".join", ".settimeout", "select.select", ".wait_for"))
    return any(word.arg == "timeout" and is_long(word.value) for word in node.keywords) or (
        waits and any(map(is_long, node.args))
    )


RULES = {own_deadline: "PATIENCE_S", polls: "until", upper_bound: "must_end", long_wait: "PATIENCE_S"}


def offences(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        for rule, instead in RULES.items():
            if rule(node):
                line = ast.unparse(node).splitlines()[0]
                yield f"{node.lineno}: {line}  ->  {instead} of tests/patience.py"  # type: ignore[attr-defined]


def test_no_test_has_a_deadline_or_a_loop_of_its_own() -> None:
    found = [f"tests/{name}:{offence}" for name, tree in modules() for offence in offences(tree)]
    assert not found, "\n" + "\n".join(found)


def test_each_exception_is_still_one() -> None:
    for name in ALLOWED:
        assert list(offences(ast.parse((HERE / name).read_bytes()))), f"{name} needs no exception any more"


@pytest.mark.parametrize(
    "line",
    [
        "LONG_S = 60.0",
        "while not done(): time.sleep(0.01)",
        "assert time.monotonic() - began < 2.0",
        "subprocess.run(argv, timeout=60)",
        "process.wait(30)",
        "select.select([pidfd], [], [], 60)",
    ],
)
def test_what_the_rule_finds(line: str) -> None:
    assert len(list(offences(ast.parse(line)))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "MUST_EXPIRE_S = 0.3",
        "time.sleep(chance.uniform(0, 0.3))",
        "assert time.monotonic() - began >= 2.9",
        "subprocess.run(argv, timeout=PATIENCE_S)",
        "process.wait(chance.uniform(0.1, 0.8))",
    ],
)
def test_what_it_leaves_alone(line: str) -> None:
    assert not list(offences(ast.parse(line)))

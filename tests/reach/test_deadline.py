"""A child of ours attaches to another user's process: results and errors are as if there were no child."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import needs
from tests.patience import PATIENCE_S, until, until_readable
from tests.reach.conftest import SOURCES

KILLS = int(os.environ.get("VRAM_KILLS", "30"))
BE_NOBODY = "import os; os.setgid(65534); os.setuid(65534)"
PYTHON = "/usr/bin/python3"  # one whose library every user may read
TARGET = f"""
import sys, threading
{BE_NOBODY}
print("ready", flush=True)
for line in sys.stdin:
    print(threading.active_count(), flush=True)
"""
# Imports vram once, and forks whoever asks: a line with a pid is answered with the pid of the asker, then
# with what became of it. Tests that a shell started in the background inherit that SIGINT is ignored.
ASKERS = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from vram.errors import VramError
from vram.host.local import LocalHost
from vram.children import may_fork
from vram.reach import agent, injection, injectors, jupyter, remote_exec
from vram.reach.injectors import ask_trim
from vram.reclaim.identity import identify

def ask(pid):
    target = identify(LocalHost(), pid)
    assert may_fork() and target.uid == 65534
    print(os.getpid(), flush=True)
    try:
        answer = ask_trim(target, "measure", float(sys.argv[1]))
        print(answer.via, answer.answer.status, flush=True)
    except VramError as error:
        print(type(error).__name__, error.exit_code.value, bool(error.hint), error, flush=True)

while line := sys.stdin.readline():
    asker = os.fork()
    if not asker:
        try:
            ask(int(line))
        finally:
            os._exit(0)
    # Until the next line it stays a zombie: its pid is nobody else's, and can be sent a signal.
    os.waitid(os.P_PID, asker, os.WEXITED | os.WNOWAIT)
    print("ended", flush=True)
    sys.stdin.readline()
    os.waitpid(asker, 0)
"""

pytestmark = [
    needs("root", detail="only root attaches to others"),
    needs("system-python"),
    needs("known-processor"),
]


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([PYTHON, "-c", TARGET], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


class Askers:
    """Processes that ask, one after the other, each forked from one that has imported vram."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, pid: int) -> int:
        """Let a new one ask *pid*; return who asks."""
        self._tell(str(pid))
        return int(self._line())

    def end(self) -> str:
        """What it printed until it ended."""
        said = ""
        while (line := self._line()) != "ended\n":
            said += line
        self._tell("reap")
        return said

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks them has ended"
        return line


@pytest.fixture(scope="module")
def askers() -> Iterator[Askers]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    argv = [sys.executable, "-c", ASKERS, str(PATIENCE_S)]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, **pipes) as process:  # type: ignore[call-overload]
        yield Askers(process)
        process.kill()


def until_it_is_alone(target: subprocess.Popen[str]) -> None:
    """Come back when it answers with no thread of ours left in it."""
    until(lambda: _threads(target) == 1, lambda: f"{_threads(target)} threads")


def _threads(target: subprocess.Popen[str]) -> int:
    assert target.stdin is not None
    assert target.stdout is not None
    target.stdin.write("\n")
    target.stdin.flush()
    until_readable(target.stdout, lambda: "it does not answer: it is stopped, or hangs")
    return int(target.stdout.readline())


def test_it_answers(target: subprocess.Popen[str], askers: Askers) -> None:
    askers.start(target.pid)
    assert askers.end() in ("ptrace done\n", "remote-exec done\n")
    until_it_is_alone(target)


def test_a_refusal_keeps_its_kind_words_and_hint(askers: Askers) -> None:
    code = f"{BE_NOBODY}; os.execv('/bin/sleep', ['sleep', '1000'])"
    with subprocess.Popen([sys.executable, "-c", code]) as sleeping:
        until(lambda: Path(f"/proc/{sleeping.pid}/comm").read_text() == "sleep\n")
        askers.start(sleeping.pid)
        said = askers.end()
        sleeping.kill()
    assert said.startswith("NotReachable 14 True ")
    assert str(sleeping.pid) in said


def test_killed_at_any_moment_it_leaves_the_target_as_it_was(
    target: subprocess.Popen[str], askers: Askers
) -> None:
    chance = random.Random(5)
    for _ in range(KILLS):
        asker = askers.start(target.pid)
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(asker, chance.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
        askers.end()
        until_it_is_alone(target)
        assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()

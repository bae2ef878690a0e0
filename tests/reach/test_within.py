"""Another user's process is visited by a process of ours: what comes of it is told as if there were none."""

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

from tests.reach.conftest import SOURCES

KILLS = int(os.environ.get("VRAM_KILLS", "20"))
BE_NOBODY = "import os; os.setgid(65534); os.setuid(65534)"
PYTHON = "/usr/bin/python3"  # one whose library every user may read
TARGET = f"""
import sys, threading
{BE_NOBODY}
print("ready", flush=True)
for line in sys.stdin:
    print(threading.active_count(), flush=True)
"""
VISITOR = """
import sys
from vram.errors import VramError
from vram.host.local import LocalHost
from vram.host.local.child import may_fork
from vram.reach.ways import reach
from vram.reclaim.identity import identify
target = identify(LocalHost(), int(sys.argv[1]))
assert may_fork() and target.uid == 65534
print("going", flush=True)
try:
    visit = reach(target, "measure", 30.0)
    print(visit.via, visit.answer.status, flush=True)
except VramError as error:
    print(type(error).__name__, error.exit_code.value, bool(error.hint), error, flush=True)
"""

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root visits others"),
    pytest.mark.skipif(not os.path.exists(PYTHON), reason=f"there is no {PYTHON}"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="memory is read on x86-64 only"),
]


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([PYTHON, "-c", TARGET], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def visitor(pid: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    argv = [sys.executable, "-c", VISITOR, str(pid)]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)


def goes_on(target: subprocess.Popen[str]) -> bool:
    """Whether it answers, with no thread of ours left in it."""
    assert target.stdin is not None
    assert target.stdout is not None
    until = time.monotonic() + 30
    while time.monotonic() < until:
        target.stdin.write("\n")
        target.stdin.flush()
        if target.stdout.readline() == "1\n":
            return True
        time.sleep(0.01)
    return False


def test_it_answers(target: subprocess.Popen[str]) -> None:
    said, _ = visitor(target.pid).communicate(timeout=60)
    assert said.splitlines()[1] in ("ptrace done", "remote-exec done")
    assert goes_on(target)


def test_a_refusal_keeps_its_kind_words_and_hint() -> None:
    code = f"{BE_NOBODY}; os.execv('/bin/sleep', ['sleep', '60'])"
    with subprocess.Popen([sys.executable, "-c", code]) as sleeping:
        while Path(f"/proc/{sleeping.pid}/comm").read_text() != "sleep\n":
            time.sleep(0.01)
        said, _ = visitor(sleeping.pid).communicate(timeout=60)
        sleeping.kill()
    assert said.splitlines()[1].startswith("NotReachable 14 ")
    assert str(sleeping.pid) in said


def test_killed_at_any_moment_it_leaves_the_target_as_it_was(target: subprocess.Popen[str]) -> None:
    chance = random.Random(5)
    for _ in range(KILLS):
        process = visitor(target.pid)
        assert process.stdout is not None
        assert process.stdout.readline() == "going\n"
        time.sleep(chance.uniform(0.0, 0.06))
        process.send_signal(chance.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM)))
        process.communicate(timeout=60)
        assert goes_on(target)
        assert "TracerPid:\t0" in Path(f"/proc/{target.pid}/status").read_text()

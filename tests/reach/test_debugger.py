"""Through a debugger: wherever it stops the target, the target is unharmed; a deadline always holds.

VRAM_TRIES says how often the random ones are tried (6).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.reach.conftest import CACHED, Subject, World, gave_back, target_of
from vram.errors import DebuggerUnavailable, NotReachable, TimedOut
from vram.reach import permission
from vram.reach.ways import reach

TRIES = int(os.environ.get("VRAM_TRIES", "6"))
DEADLINE_S = 60.0


@pytest.fixture(params=[name for name in ("gdb", "lldb") if shutil.which(name)] or ["gdb"], autouse=True)
def debugger(request: pytest.FixtureRequest, world: World, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each debugger that is here and may attach."""
    name: str = request.param
    if not shutil.which(name):
        pytest.skip(f"no {name} here: apt-get install {name}")
    if not _may_attach():
        pytest.skip(f"no debugger may attach here: {permission.why_not_traced()}")
    monkeypatch.setenv("VRAM_DEBUGGER", name)
    world.environment["VRAM_DEBUGGER"] = name
    return name


@cache
def _may_attach() -> bool:
    """Whether a process may be traced that is no child of the one who wants to."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    attach = f"import ctypes; sys.exit(ctypes.CDLL(None).ptrace(16, {process.pid}, 0, 0) != 0)"
    asked = subprocess.run([sys.executable, "-c", f"import sys; {attach}"])
    process.kill()
    process.communicate()
    return asked.returncode == 0


def visit(subject: Subject, deadline_s: float = DEADLINE_S) -> int:
    answer = reach(target_of(subject.pid), "trim", deadline_s, via="debugger").answer
    return answer.returned_bytes


@pytest.mark.parametrize("rest", ["reading", "computing"])
def test_it_gives_back_and_goes_on(world: World, rest: str) -> None:
    """At rest in a system call, and in the middle of its work."""
    subject = world.subject(rest)
    receipt = world.trim(subject.pid, "--via", "debugger")
    assert receipt["via"] == "debugger"
    assert gave_back(receipt) >= CACHED
    assert subject.ask() == {"alive": 1, "modules": []}
    assert subject.tracer == 0


def test_never_taken_unless_asked_for(world: World) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python has a safer door")
    subject = world.subject("reading")
    assert world.vram("trim", subject.pid).returncode == 14
    with pytest.raises(NotReachable, match="no way leads into"):
        reach(target_of(subject.pid), "trim", 1.0)


def test_many_visits_inside_malloc_do_no_harm(world: World) -> None:
    """Every object of this program comes from malloc: that is where a debugger finds it."""
    subject = world.subject("computing", PYTHONMALLOC="malloc")
    for number in range(1, TRIES + 1):
        visit(subject)
        assert subject.ask()["alive"] == number
    assert subject.tracer == 0


def test_with_the_interpreters_lock_held_nothing_is_done(world: World) -> None:
    """It never comes to a safe point before the deadline; when it does, the visit was called off."""
    subject = world.subject("holding-the-lock")
    with pytest.raises(TimedOut, match="nothing was done"):
        visit(subject, deadline_s=3.0)
    assert not list((world.runtime / "vram").iterdir())
    assert subject.ask()["alive"] == 0
    assert subject.ask()["alive"] == 1
    assert visit(subject) >= CACHED


@pytest.mark.skipif(TRIES < 34, reason="filling the list takes 33 visits that time out: VRAM_TRIES=34")
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="this Python's list is ten times as long")
def test_a_full_list_of_pending_calls_is_left_alone(world: World) -> None:
    subject = world.subject("holding-the-lock")
    for _ in range(32):
        with pytest.raises((TimedOut, NotReachable)):
            visit(subject, deadline_s=2.0)
    with pytest.raises(NotReachable, match="pending calls is full"):
        visit(subject, deadline_s=2.0)
    assert subject.ask()["alive"] == 0


def test_a_stopped_process_is_refused_and_stays_as_it_was(world: World) -> None:
    subject = world.subject("reading")
    subject.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, subject.pid, os.WSTOPPED)
    with pytest.raises(NotReachable, match="is stopped"):
        visit(subject)
    assert Path(f"/proc/{subject.pid}/stat").read_text().split(")")[1].split()[0] == "T"
    subject.process.send_signal(signal.SIGCONT)
    assert subject.ask()["alive"] == 1


def test_what_is_no_python_is_refused_untouched(world: World) -> None:
    process = world.popen(["cat"])
    with pytest.raises(NotReachable, match="no Python process"):
        reach(target_of(process.pid), "trim", 1.0, via="debugger")
    process.communicate()


TRACER = """
import ctypes, os, sys
pid = int(sys.argv[1])
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
seize, detach = 0x4206, 17
assert ptrace(seize, pid, None, None) == 0
print("attached", flush=True)
sys.stdin.read()
"""


def test_who_is_debugged_already_is_refused(world: World) -> None:
    """Seized by a tracer that lets it run, as strace and profilers do."""
    subject = world.subject("reading")
    tracer = world.popen([sys.executable, "-c", TRACER, str(subject.pid)])
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == b"attached\n"
    with pytest.raises(DebuggerUnavailable, match=f"debugged by pid {tracer.pid}"):
        visit(subject)
    assert world.vram("trim", subject.pid, "--via", "debugger").returncode == 18
    tracer.communicate()
    assert subject.ask()["alive"] == 1


def test_no_debugger_no_visit(world: World, tmp_path: Path) -> None:
    subject = world.subject("reading")
    done = world.vram("trim", subject.pid, "--via", "debugger", PATH=str(tmp_path), CUDA_HOME=str(tmp_path))
    assert done.returncode == 18
    assert "apt-get install gdb" in done.stderr


def test_a_deadline_that_gdb_cannot_meet_leaves_the_target_running(world: World) -> None:
    subject = world.subject("reading")
    for _ in range(3):
        with pytest.raises(TimedOut):
            visit(subject, deadline_s=0.05)
    assert subject.ask()["alive"] == 1
    assert subject.tracer == 0


class TestOurOwnDeath:
    """vram killed at any moment: the guardian lets go of the target, and it runs."""

    @pytest.fixture(autouse=True)
    def reaper(self) -> Iterator[None]:
        """Orphans become our children, so that their end can be waited for."""
        import ctypes

        set_child_subreaper = 36
        libc = ctypes.CDLL(None)
        libc.prctl(set_child_subreaper, 1)
        yield
        libc.prctl(set_child_subreaper, 0)

    def children(self) -> set[int]:
        lists = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
        return {int(pid) for pid in " ".join(lists).split()}

    def wait_for_orphans(self, ours: set[int]) -> None:
        """Wait until nobody is left of our children but those that we have started ourselves."""
        while orphans := self.children() - ours:
            os.waitid(os.P_PID, min(orphans), os.WEXITED)

    def test_the_target_is_never_left_stopped(self, world: World) -> None:
        subject = world.subject("computing")
        ours = self.children()
        chance = random.Random(20)
        for number in range(1, TRIES + 1):
            command = [sys.executable, "-m", "vram", "trim", str(subject.pid), "--via", "debugger", "--json"]
            process = subprocess.Popen(
                command, env=world.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                process.wait(timeout=chance.uniform(0.05, 1.5))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.wait_for_orphans(ours)
            assert subject.tracer == 0
            assert subject.ask()["alive"] == number
        assert [line["event"] for line in world.audit()].count("intend") <= TRIES

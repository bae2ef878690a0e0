"""Through a debugger: wherever it stops the target, the target is unharmed; a deadline always holds.

VRAM_TRIES says how often the random ones are tried (10).
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reach.conftest import CACHED, Subject, World, gave_back, target_of
from vram.errors import DebuggerUnavailable, NotReachable, TimedOut
from vram.reach import permission
from vram.reach.ways import reach

TRIES = int(os.environ.get("VRAM_TRIES", "10"))
DEADLINE_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def gdb() -> None:
    """A debugger that may attach: to a child of its own at least."""
    if not shutil.which("gdb"):
        pytest.skip("no gdb here: apt-get install gdb")
    process = subprocess.Popen(["sleep", "60"])
    try:
        words = ["gdb", "--nx", "--batch", "-p", str(process.pid)]
        told = subprocess.run(words, capture_output=True, text=True, timeout=60)
    finally:
        process.kill()
        process.wait()
    if "not permitted" in told.stderr:
        pytest.skip(f"no debugger may attach here: {permission.why_not_traced()}")


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


def test_who_is_debugged_already_is_refused(world: World) -> None:
    subject = world.subject("reading")
    other = subprocess.Popen(
        ["gdb", "--nx", "--quiet", "--interpreter=mi2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdin is not None
    assert other.stdout is not None
    other.stdin.write(f"1-target-attach {subject.pid}\n".encode())
    other.stdin.flush()
    while not other.stdout.readline().startswith(b"1^done"):
        pass
    # To the target's state both are the same word: it is in a debugger's hands.
    with pytest.raises((DebuggerUnavailable, NotReachable), match=r"debugg"):
        visit(subject)
    other.communicate(b"-target-detach\n-gdb-exit\n")
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


@pytest.mark.parametrize(
    ("scope", "said"), [("1", "parent"), ("2", "only root"), ("3", "nobody"), ("0", "CAP_SYS_PTRACE")]
)
def test_yama_is_explained(tmp_path: Path, scope: str, said: str) -> None:
    (tmp_path / "ptrace_scope").write_text(f"{scope}\n")
    assert said in permission.why_not_traced(str(tmp_path / "ptrace_scope"))


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

    def wait_for_orphans(self, subject: Subject) -> None:
        """Wait until nobody but the subject is left of our children; it must not be the one to end."""
        while True:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            others = [int(pid) for pid in children if int(pid) != subject.pid]
            if not others:
                return
            ended = os.waitid(os.P_PID, others[0], os.WEXITED)
            assert ended is not None

    def test_the_target_is_never_left_stopped(self, world: World) -> None:
        subject = world.subject("computing")
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
            self.wait_for_orphans(subject)
            assert subject.tracer == 0
            assert subject.ask()["alive"] == number
        assert [line["event"] for line in world.audit()].count("intend") <= TRIES

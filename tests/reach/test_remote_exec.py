"""Through sys.remote_exec: Python runs the file at a safe point, or never."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reach.conftest import CACHED, World, gave_back, target_of
from vram.errors import NotReachable, TimedOut
from vram.reach.ways import reach

NOBODY = 65534
# Tells as its complaint what it was given: standard input, folder, whose session, user, environment.
CURIOUS_INTERPRETER = """\
#!/bin/sh
me=/proc/$$
session=$(cut -d" " -f6 $me/stat)
echo "$(readlink $me/fd/0)|$(readlink $me/cwd)|$((session == $$))|$(id -u)|$(tr "\\0" " " <$me/environ)" >&2
exit 1
"""
VISITOR = """\
import sys
from msgspec.structs import replace
from tests.reach.conftest import target_of
from vram.errors import NotReachable
from vram.reach.python_process import examine
from vram.reach.remote_exec import visit
from vram.reach.request import Request

pid, uid, interpreter = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
seen = examine(target_of(pid))
process = replace(seen, target=replace(seen.target, uid=uid), gid=uid, executable=interpreter)
try:
    visit(process, Request("trim", {"verb": "trim"}), 30.0)
except NotReachable as error:
    print(str(error).rpartition(": ")[2])
"""


@pytest.mark.parametrize("rest", ["computing"])
def test_a_working_program_gives_back_and_goes_on(world: World, python314: str, rest: str) -> None:
    subject = world.subject(rest, python=python314)
    receipt = world.trim(subject.pid)
    assert receipt["via"] == "remote-exec"
    assert gave_back(receipt) >= CACHED
    assert subject.ask() == {"alive": 1, "modules": []}


@pytest.mark.fault(20)
def test_blocked_in_c_it_is_called_off(world: World, python314: str, tmp_path: Path) -> None:
    """The file was promised to run; when the program wakes up at last, it is empty, and nobody complains."""
    complaints = tmp_path / "complaints"
    with complaints.open("wb") as stream:
        subject = world.subject("reading", python=python314, stderr=stream)
    with pytest.raises(TimedOut, match="nothing was done"):
        reach(target_of(subject.pid), "trim", 0.5)
    assert subject.ask()["alive"] == 1
    assert subject.ask()["alive"] == 2
    assert complaints.read_text() == ""
    subject.close()
    (left,) = (world.runtime / "vram").iterdir()
    assert [file.name for file in left.iterdir() if file.stat().st_size] == []
    # Whoever is visited next clears up after those that have ended.
    other = world.subject("computing", python=python314)
    assert gave_back(world.trim(other.pid)) >= CACHED
    assert not list((world.runtime / "vram").iterdir())


@pytest.mark.parametrize("how", ["variable", "option"])
def test_who_disabled_it_is_left_alone(world: World, python314: str, how: str) -> None:
    environment = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"} if how == "variable" else {}
    options = ["-X", "disable-remote-debug"] if how == "option" else []
    subject = world.subject("computing", python=python314, options=options, **environment)
    with pytest.raises(NotReachable, match="disabled"):
        reach(target_of(subject.pid), "trim", 30.0, via="remote-exec")
    assert subject.ask()["alive"] == 1


def test_older_pythons_have_no_such_door(world: World) -> None:
    if sys.version_info >= (3, 14):
        pytest.skip("this Python has it")
    subject = world.subject("reading")
    done = world.vram("trim", subject.pid, "--via", "remote-exec")
    assert done.returncode == 14
    assert "has no sys.remote_exec" in done.stderr


@pytest.fixture
def curious_interpreter() -> Iterator[str]:
    """A program where every user may start it, unlike in a folder of the test's own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        program = Path(folder) / "python3.14"
        program.write_text(CURIOUS_INTERPRETER)
        program.chmod(0o755)
        yield str(program)


def given_to(interpreter: str, world: World, uid: int) -> list[str]:
    """What the interpreter of a target was given when it was asked to attach."""
    subject = world.subject("reading")
    environment = {**world.environment, "PYTHONPATH": os.pathsep.join(sys.path), "SECRET": "ours"}
    argv = [sys.executable, "-c", VISITOR, str(subject.pid), str(uid), interpreter]
    done = subprocess.run(
        argv, env=environment, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n").split("|")


def test_the_targets_interpreter_gets_no_terminal_of_ours(world: World, curious_interpreter: str) -> None:
    """Whatever file it is, it has a session of its own: nothing can be typed into ours from there."""
    stdin, folder, leads_session, *_ = given_to(curious_interpreter, world, os.geteuid())
    assert (stdin, folder, leads_session) == ("/dev/null", "/", "1")


def test_another_users_interpreter_learns_nothing_of_roots(world: World, curious_interpreter: str) -> None:
    if os.geteuid():
        pytest.skip("only root visits others")
    stdin, folder, leads_session, uid, variables = given_to(curious_interpreter, world, NOBODY)
    assert (stdin, folder, leads_session, uid) == ("/dev/null", "/", "1", str(NOBODY))
    assert sorted(variables.split()) == ["LC_ALL=C", f"PATH={os.defpath}"]

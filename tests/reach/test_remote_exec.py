"""Through Python 3.14's interface for debuggers: a file runs at a safe point, or never; nobody is started."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.needs import needs, require
from tests.patience import PATIENCE_S, until
from tests.reach.conftest import CACHED, World, released, target_of
from tests.reach.soak import TargetProgram, kill_during_runs, run_often, run_once
from vram.errors import NotReachable, TimedOut
from vram.reach import attachment, remote_exec
from vram.reach.attachment import open_target
from vram.reach.injectors import ask_trim
from vram.reach.target_process import TargetProcess, examine

NOBODY = 65534


@pytest.fixture
def start(world: World, python314: str) -> Iterator[Callable[..., TargetProgram]]:
    made: list[TargetProgram] = []

    def start(state: str, **environment: str) -> TargetProgram:
        made.append(TargetProgram(python314, state, **environment))
        return made[-1]

    yield start
    for each in made:
        each.close()


def waiting(process: TargetProcess) -> bytes | None:
    """The request that lies in the process and has not been seen by its main thread."""
    with attachment.open_target(process, remote_exec.DebuggerInterface) as interface:
        return interface._pending_path(interface.find_main_thread().state + interface._offsets.support)


def left(world: World) -> list[Path]:
    return list((world.runtime / "vram").iterdir())


@pytest.mark.parametrize("rest", ["computing", "reading"])
def test_it_releases_and_goes_on(world: World, python314: str, rest: str) -> None:
    subject = world.subject(rest, python=python314)
    receipt = world.trim(subject.pid)
    assert receipt["via"] == "remote-exec"
    assert released(receipt) >= CACHED
    assert 0 < receipt["stopped_s"] < PATIENCE_S
    assert subject.ask() == {"alive": 1, "modules": []}
    assert not left(world)


@pytest.mark.parametrize("state", ["busy", "ringing", "poll", "timed", "join"])
def test_at_work_at_rest_or_waiting_for_a_lock(
    world: World, start: Callable[..., TargetProgram], state: str
) -> None:
    program = start(state)
    before = program.ask()
    run_often(program, 2, asking_every=2, injector=remote_exec)
    after = program.ask()
    assert (after["names"], after["threads"]) == (before["names"], before["threads"])
    assert not left(world)


@pytest.mark.parametrize("state", ["busy", "timed"])
def test_a_run_killed_at_any_moment_does_no_harm(start: Callable[..., TargetProgram], state: str) -> None:
    program = start(state)
    kill_during_runs(program, 3, random.Random(state), remote_exec)
    run_often(program, 1, injector=remote_exec)


@pytest.mark.fault(20)
def test_blocked_in_c_it_is_called_off(world: World, python314: str, tmp_path: Path) -> None:
    """The request is taken back: the program wakes up at last, finds nothing, and nobody complains."""
    complaints = tmp_path / "complaints"
    with complaints.open("wb") as stream:
        subject = world.subject("holding-the-lock", python=python314, stderr=stream)
    for _ in range(2):
        with pytest.raises(TimedOut, match="nothing was done"):
            ask_trim(target_of(subject.pid), "trim", 1.0)
        assert not left(world)
    assert waiting(examine(target_of(subject.pid))) is None
    assert subject.ask()["alive"] == 0
    assert subject.ask()["alive"] == 1
    assert complaints.read_text() == ""


def test_what_a_killed_run_left_does_nothing_and_is_replaced(
    world: World, start: Callable[..., TargetProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = start("holding")
    process = program.python()
    at_work_s = remote_exec._AT_WORK_S
    monkeypatch.setattr(remote_exec, "_AT_WORK_S", PATIENCE_S)
    child = os.fork()
    if not child:
        run_once(process, injector=remote_exec)
        os._exit(0)
    until(lambda: waiting(process) is not None)
    (abandoned,) = left(world)
    request = waiting(process)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(TimedOut):
        run_once(process, 2.0, remote_exec)
    assert waiting(process) != request
    assert abandoned not in left(world)
    monkeypatch.setattr(remote_exec, "_AT_WORK_S", at_work_s)
    program.ask()
    run_once(process, injector=remote_exec)


def test_another_debuggers_request_is_left_alone(
    start: Callable[..., TargetProgram], python314: str, tmp_path: Path
) -> None:
    program = start("holding")
    mark, script = tmp_path / "mark", tmp_path / "script.py"
    script.write_text(f"open({str(mark)!r}, 'w').close()")
    asking = f"import sys; sys.remote_exec({program.pid}, {str(script)!r})"
    subprocess.run([python314, "-c", asking], check=True, timeout=PATIENCE_S)
    with pytest.raises(NotReachable, match="another debugger's request"):
        run_once(program.python(), 1.0, remote_exec)
    program.ask()
    until(mark.exists)
    run_once(program.python(), injector=remote_exec)


@pytest.mark.parametrize("via", ["remote-exec", "ptrace"])
@pytest.mark.parametrize("how", ["variable", "option"])
def test_who_disabled_it_is_left_alone(world: World, python314: str, how: str, via: str) -> None:
    environment = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"} if how == "variable" else {}
    options = ["-X", "disable-remote-debug"] if how == "option" else []
    subject = world.subject("computing", python=python314, options=options, **environment)
    with pytest.raises(NotReachable, match="disabled"):
        ask_trim(target_of(subject.pid), "trim", PATIENCE_S, via=via)
    assert subject.ask()["alive"] == 1


def test_older_pythons_have_no_such_door(world: World) -> None:
    require("older-python", detail="this Python has sys.remote_exec")
    subject = world.subject("reading")
    done = world.vram("trim", subject.pid, "--via", "remote-exec")
    assert done.returncode == 14
    assert "has no sys.remote_exec" in done.stderr


def test_its_version_is_what_its_memory_says(world: World, start: Callable[..., TargetProgram]) -> None:
    """Not what its file is called."""
    require("older-python", detail="this Python has sys.remote_exec")
    subject = world.subject("reading")
    found = examine(target_of(subject.pid))
    assert "has no sys.remote_exec" in (remote_exec.unavailable_reason(replace(found, minor=14)) or "")
    assert remote_exec.unavailable_reason(replace(start("read").python(), minor=None)) is None


def test_a_path_that_does_not_fit(
    world: World, start: Callable[..., TargetProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = world.runtime / ("d" * 250) / ("e" * 250)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    program = start("read")
    with pytest.raises(NotReachable, match="too long"):
        run_once(program.python(), injector=remote_exec)
    program.ask()


def test_one_that_begins_another_program_meanwhile(python314: str) -> None:
    """Pid, start and name stay; what was learnt of the old program is not written into the new one."""
    code = "import os, sys; print(1, flush=True); input(); os.execv(sys.executable, sys.argv[1:])"
    argv = [python314, "-c", "print(2, flush=True); print(input())"]
    process = subprocess.Popen([python314, "-uc", code, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        with open_target(examine(target_of(process.pid)), remote_exec.DebuggerInterface) as interface:
            process.stdin.write(b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"2\n"
            with pytest.raises(remote_exec.TargetEnded):
                interface.request("/nowhere", time.monotonic() + PATIENCE_S)
    finally:
        told, _ = process.communicate(b"well\n", timeout=PATIENCE_S)
    assert (told, process.returncode) == (b"well\n", 0)


@pytest.fixture
def planted(python314: str) -> Iterator[Path]:
    """A folder of everybody's with an interpreter that will be replaced while it runs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        shutil.copy(os.path.realpath(python314), folder / "python3.14")
        yield folder


@needs("root", detail="only root runs others")
def test_no_program_of_the_targets_is_run(world: World, planted: Path, python314: str) -> None:
    """Its interpreter has become another file since: whoever started that would have been seen."""
    mark, interpreter = planted / "mark", planted / "python3.14"
    code = "import os; os.setgid(65534); os.setuid(65534); print(1, flush=True); print(input())"
    home = str(Path(os.path.realpath(python314)).parents[1])
    process = subprocess.Popen(
        [str(interpreter), "-c", code],
        env={**os.environ, "PYTHONHOME": home},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        fake = planted / "fake"
        fake.write_text(f"#!/bin/sh\nid >{mark}\nsleep 30\n")
        fake.chmod(0o755)
        fake.rename(interpreter)
        found = examine(target_of(process.pid))
        assert not found.is_ours
        for _ in range(2):
            run_once(found, PATIENCE_S, remote_exec)
        assert not mark.exists()
    finally:
        told, _ = process.communicate(b"well\n", timeout=PATIENCE_S)
    assert told == b"well\n"

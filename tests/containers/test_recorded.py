"""Traces of programs in containers: written there, brought here, named by the libraries that lie there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.containers.container import PYTHON, Container
from tests.containers.test_from_outside import PLACES, Start, programs, start
from tests.needs import needs, require
from tests.patience import until
from tests.reach.conftest import World, world
from vram.errors import ExitCode

__all__ = ["programs", "start", "world"]

pytestmark = needs("root", detail="only root goes into other containers")
SOURCE = Path(__file__).with_name("leak.c")
LOOP = (PYTHON, "/app/loop.py")


def vram(world: World, *words: object) -> str:
    done = world.vram(*words)
    assert done.returncode == ExitCode.OK, done.stderr
    return done.stdout


def record(world: World, program: Container, path: Path) -> str:
    """The report on a recording in which the program allocated a few times."""
    vram(world, "attach", program.pid)
    kept = program.ask()
    until(lambda: made(program.ask()) > made(kept) + 10)
    vram(world, "attach", program.pid, "--stop", "-o", path)
    return vram(world, "report", path)


def made(heard: dict[str, Any]) -> int:
    """By loop.py, or by leak.c."""
    count: int = heard.get("kept", heard["alive"])
    return count


@pytest.mark.parametrize("place", ["a container", "read-only, no /tmp", "another user", "bubblewrap", "runc"])
def test_a_python_is_recorded(world: World, start: Start, tmp_path: Path, place: str) -> None:
    """The lines are the container's, and nothing of the trace stays there."""
    options: dict[str, Any] = {**PLACES[place]}
    if place == "read-only, no /tmp":
        options["options"] = "read-only no-tmp"  # /dev/shm is left, as every runtime has it
    program = start(argv=LOOP, **options)
    shown = record(world, program, tmp_path / "trace.vram")
    assert "← leak  /app/loop.py:" in shown
    assert program.files() == []
    again = record(world, program, tmp_path / "again.vram")  # by the recorder that is loaded already
    assert "← leak  /app/loop.py:" in again


def test_with_for_it_is_brought_when_the_time_is_over(world: World, start: Start, tmp_path: Path) -> None:
    program, trace = start(argv=LOOP), tmp_path / "trace.vram"
    vram(world, "attach", program.pid, "--for", "1s", "-o", trace)
    assert "recording was stopped" in vram(world, "report", trace)
    assert program.files() == []
    assert program.ask()["alive"] == 1


def test_with_stop_it_comes_into_the_working_folder(world: World, start: Start, tmp_path: Path) -> None:
    program = start(argv=LOOP)
    begun = world.vram("attach", program.pid)
    assert begun.returncode == ExitCode.OK, begun.stderr
    assert "in its container" in begun.stderr
    trace = tmp_path / "brought.vram"
    done = world.vram("attach", program.pid, "--stop", "-o", trace)
    assert done.returncode == ExitCode.OK, done.stderr
    assert "← leak  /app/loop.py:" in vram(world, "report", trace)
    assert program.files() == []


def test_a_name_for_a_trace_that_is_not_waited_for_is_refused(world: World, start: Start) -> None:
    program = start(argv=LOOP)
    done = world.vram("attach", program.pid, "-o", "here.vram")
    assert (done.returncode, "--stop -o" in done.stderr) == (ExitCode.USAGE, True)


def test_where_nothing_can_be_written_it_says_so(world: World, start: Start) -> None:
    program = start(argv=LOOP, options="read-only no-tmp no-shm")
    done = world.vram("attach", program.pid)
    assert done.returncode != ExitCode.OK
    assert "mount a tmpfs at /tmp" in done.stderr
    assert program.ask()["alive"] == 1


def build_leak(path: Path, name: str, build_id: str) -> Path:
    require("cc")
    words = ["cc", "-g", "-O1", f"-DNAME={name}", f"-Wl,--build-id={build_id}"]
    subprocess.run([*words, str(SOURCE), "-o", str(path), "-ldl"], check=True)
    return path


@pytest.mark.parametrize("build_id", ["sha1", "none"])
def test_native_frames_are_named_by_the_files_there(
    world: World, start: Start, tmp_path: Path, build_id: str
) -> None:
    """Here lies another program under the same name, older than the recording."""
    here = build_leak(tmp_path / "program", "of_the_host", build_id)
    os.utime(here, (0, 0))
    there = build_leak(tmp_path / "theirs", "of_the_container", build_id)
    program = start(argv=(str(here),), files={str(here): there})
    trace = tmp_path / "trace.vram"
    shown = record(world, program, trace)
    assert "of_the_container" in shown
    assert "leak.c:11" in shown
    program.close()
    assert "of_the_host" not in vram(world, "report", trace)

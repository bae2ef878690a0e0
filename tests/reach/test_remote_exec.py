"""Through sys.remote_exec: Python runs the file at a safe point, or never."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reach.conftest import CACHED, World, gave_back, target_of
from vram.errors import NotReachable, TimedOut
from vram.reach.ways import reach


@pytest.mark.parametrize("rest", ["computing"])
def test_a_working_program_gives_back_and_goes_on(world: World, python314: str, rest: str) -> None:
    subject = world.subject(rest, python=python314)
    receipt = world.trim(subject.pid)
    assert receipt["via"] == "remote-exec"
    assert gave_back(receipt) >= CACHED
    assert subject.ask() == {"alive": 1, "modules": []}


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
    import sys

    if sys.version_info >= (3, 14):
        pytest.skip("this Python has it")
    subject = world.subject("reading")
    done = world.vram("trim", subject.pid)
    assert done.returncode == 14
    assert "has no sys.remote_exec" in done.stderr
    assert "--via debugger" in done.stderr

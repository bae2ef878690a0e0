"""tools/pythons.py: where other Pythons are found, and what is not believed."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interpreters import finder, versions_in

TOOL = Path(__file__).parents[1] / "tools" / "pythons.py"
VERSION = "9.9"  # which no machine has

Plant = Callable[..., Path]


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Put a program that answers as a Python there; each start of it is a line of the file "started"."""

    def put(folder: str, answer: str = f"{VERSION} cpython", code: int = 0) -> Path:
        program = tmp_path / folder / "bin" / f"python{VERSION}"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho {folder} >>{tmp_path}/started\necho {answer}\nexit {code}\n")
        program.chmod(0o755)
        return program

    return put


def found(tmp_path: Path, *versions: str, **variables: str) -> list[str]:
    """What the tool prints in an environment with nothing else in it."""
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", **variables}
    done = subprocess.run([sys.executable, TOOL, *versions], env=env, capture_output=True, text=True)
    assert done.stderr == ""
    return [line.partition(": ")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "folder",
    [
        ".pyenv/versions/9.9.1",
        ".local/share/uv/python/cpython-9.9.1-linux-x86_64-gnu",
        ".local/share/mise/installs/python/9.9.1",
        ".asdf/installs/python/9.9.1",
        "miniconda3/envs/any",
        "miniforge3",
    ],
)
def test_it_is_found_below_the_home_folder(plant: Plant, tmp_path: Path, folder: str) -> None:
    planted = plant(folder)
    assert found(tmp_path, VERSION) == [str(planted)]


def test_it_is_found_on_path_and_where_variables_say(plant: Plant, tmp_path: Path) -> None:
    on_path, pyenv, named = plant("path"), plant("root/versions/9.9.1"), plant("named")
    variables = {"PATH": str(on_path.parent)}
    assert found(tmp_path, VERSION, **variables) == [str(on_path)]
    variables["PYENV_ROOT"] = str(tmp_path / "root")
    assert found(tmp_path, VERSION, **variables) == [str(pyenv)]
    variables["VRAM_PYTHON99"] = str(named)
    assert found(tmp_path, VERSION, **variables) == [str(named)]


def test_the_newest_patch_release_is_taken_and_each_is_started_once(plant: Plant, tmp_path: Path) -> None:
    _, newest, _ = (plant(f".pyenv/versions/9.9.{patch}") for patch in (2, 10, 9))
    assert found(tmp_path, VERSION, VERSION, "9.8") == [str(newest), str(newest), "not found"]
    assert (tmp_path / "started").read_text().splitlines() == [".pyenv/versions/9.9.10"]


@pytest.mark.parametrize(
    "answer", [{"code": 127}, {"answer": "9.8 cpython"}, {"answer": "9.9 pypy"}, {"answer": "9.9 cpython t"}]
)
def test_what_does_not_start_or_is_another_build_is_passed_over(
    plant: Plant, tmp_path: Path, answer: dict[str, str | int]
) -> None:
    plant(".pyenv/versions/9.9.3", **answer)
    sound = plant(".pyenv/versions/9.9.2")
    assert found(tmp_path, VERSION) == [str(sound)]


def test_a_t_means_the_build_without_the_lock(plant: Plant, tmp_path: Path) -> None:
    plant(".pyenv/versions/9.9.3", answer="9.9 cpython t")
    assert found(tmp_path, VERSION) == ["not found"]
    program = tmp_path / ".pyenv/versions/9.9.3/bin/python9.9"
    program.rename(program.with_name("python9.9t"))
    assert found(tmp_path, f"{VERSION}t", VERSION) == [f"{program}t", "not found"]


def test_the_home_of_the_password_database_counts_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in `env -i HOME=EMPTY make test`."""
    own = pwd.getpwuid(os.getuid()).pw_dir
    monkeypatch.setenv("HOME", str(tmp_path))
    assert finder.homes() == [str(tmp_path), own]
    monkeypatch.delenv("HOME")
    assert finder.homes() == [own]


@pytest.mark.parametrize(
    ("test", "versions"),
    [
        ("test_frames[3.13]", {"3.13"}),
        ("test_frames[busy-3.13t]", {"3.13t"}),
        ("test_frames[2.7-3.10]", {"2.7", "3.10"}),
        ("test_sizes[3.5GiB]", set()),
        ("test_frames", set()),
    ],
)
def test_the_versions_of_a_test(test: str, versions: set[str]) -> None:
    assert versions_in(test) == versions

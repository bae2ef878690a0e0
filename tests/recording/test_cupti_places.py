"""Which libcupti a command is offered: its own Python's, the newest that the driver can run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from vram.trace.cupti import candidates, newest_cuda


def library(folder: Path, major: int, version: str = "2025.3.0") -> str:
    """As NVIDIA's packages have it: a file named after CUPTI's version, and links."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"libcupti.so.{version}").touch()
    for name in (f"libcupti.so.{major}", "libcupti.so"):
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"libcupti.so.{version}")
    return str(folder / f"libcupti.so.{version}")


def environment_of(prefix: Path) -> str:
    """A virtual environment with a Python; returns the path of that."""
    (prefix / "bin").mkdir(parents=True)
    python = prefix / "bin" / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o700)
    return str(python)


def packages(prefix: Path) -> Path:
    return prefix / "lib" / "python3.12" / "site-packages" / "nvidia"


def test_the_commands_own_packages_come_first_within_a_major(tmp_path: Path) -> None:
    python = environment_of(tmp_path / "venv")
    own = library(packages(tmp_path / "venv") / "cuda_cupti" / "lib", 12, "2024.1.0")
    system = library(tmp_path / "cuda" / "lib64", 12, "2025.1.0")
    assert candidates([python], {"PATH": ""}, [system], None) == (own, system)


def test_the_newest_major_that_the_driver_runs_comes_first(tmp_path: Path) -> None:
    newer = library(tmp_path / "13" / "lib", 13)
    older = library(tmp_path / "12" / "lib", 12, "2024.3.2")
    found = [older, newer]
    assert candidates(["true"], {"PATH": ""}, found, "580.95.05") == (newer, older)
    assert candidates(["true"], {"PATH": ""}, found, "550.54") == (older,)
    assert candidates(["true"], {"PATH": ""}, found, None) == (newer, older)


@pytest.mark.parametrize(
    ("driver", "newest"),
    [("580.159", None), ("575.51.03", 12), ("525.60", 12), ("470.1", 11), ("", None), (None, None)],
)
def test_which_cuda_a_driver_runs(driver: str | None, newest: int | None) -> None:
    assert newest_cuda(driver) == newest


def test_what_the_user_put_into_the_search_path_comes_before_all(tmp_path: Path) -> None:
    python = environment_of(tmp_path / "venv")
    own = library(packages(tmp_path / "venv") / "cu13" / "lib", 13)
    said = library(tmp_path / "mine", 11, "2022.3.0")
    variables = {"PATH": "", "LD_LIBRARY_PATH": str(tmp_path / "mine")}
    assert candidates([python], variables, [], "580.1") == (said, own)


def test_a_script_is_run_by_the_python_of_its_first_line(tmp_path: Path) -> None:
    python = environment_of(tmp_path / "venv")
    own = library(packages(tmp_path / "venv") / "cu13" / "lib", 13)
    script = tmp_path / "torchrun"
    script.write_text(f"#!{python}\nprint()\n")
    script.chmod(0o700)
    assert candidates([str(script)], {"PATH": ""}, [], None) == (own,)
    script.write_text("#!/usr/bin/env python\nprint()\n")
    assert candidates([str(script)], {"PATH": os.path.dirname(python)}, [], None) == (own,)


def test_an_environment_that_is_active_counts_for_a_shell_script(tmp_path: Path) -> None:
    own = library(packages(tmp_path / "venv") / "cu13" / "lib", 13)
    assert candidates(["sh", "train.sh"], {"PATH": "", "VIRTUAL_ENV": str(tmp_path / "venv")}, [], None) == (
        own,
    )


def test_a_program_that_is_not_there_is_no_trouble() -> None:
    assert candidates(["no-such-program"], {"PATH": ""}, [], None) == ()


def test_paths_that_the_list_cannot_carry_are_left_out(tmp_path: Path) -> None:
    library(tmp_path / "a:b", 13)
    assert candidates(["true"], {"PATH": ""}, [str(tmp_path / "a:b" / "libcupti.so.13")], None) == ()

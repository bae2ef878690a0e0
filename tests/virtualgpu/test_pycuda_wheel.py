"""tools/pycuda_wheel.py: a machine that cannot build PyCUDA says so, and its tests go on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

TOOL = Path(__file__).parents[2] / "tools" / "pycuda_wheel.py"
# The interpreter that the environment was made with: PyCUDA is not installed there.
PYTHON = getattr(sys, "_base_executable", sys.executable)
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """The tool in a checkout of its own, so that what it keeps is not this checkout's."""
    (tmp_path / "tools").mkdir()
    return Path(shutil.copy(TOOL, tmp_path / "tools"))


def run(
    tool: Path, *words: str | Path, compiler: str = "no-such-compiler"
) -> subprocess.CompletedProcess[str]:
    argv = [PYTHON, tool, *words]
    return subprocess.run(
        argv, env={"CXX": "no-such-compiler"}, capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_without_a_compiler_it_says_what_to_install(tool: Path, tmp_path: Path) -> None:
    done = run(tool, "--into", tmp_path / "wheels")
    assert done.returncode == 1
    assert "there is no C++ compiler" in done.stderr
    assert "Traceback" not in done.stderr


def test_installing_leaves_the_reason_and_does_not_fail(tool: Path, tmp_path: Path) -> None:
    done = run(tool, "--install")
    assert done.returncode == 0
    reason = (tmp_path / ".build" / "pycuda" / "not-built.txt").read_text()
    assert reason == "there is no C++ compiler (Debian: apt install g++)\n"
    assert "tests of PyCUDA will be skipped" in done.stderr


def test_an_interpreter_that_is_not_there(tool: Path, tmp_path: Path) -> None:
    done = run(tool, "--into", tmp_path, "--python", tmp_path / "python9")
    assert done.returncode == 1
    assert "python9 cannot be started: No such file or directory" in done.stderr


def test_a_wheel_that_is_there_is_not_built_again(tool: Path, tmp_path: Path) -> None:
    wheel = tmp_path / f"pycuda-2026.1-{TAG}-{TAG}-linux_x86_64.whl"
    wheel.touch()
    (tmp_path / "pycuda-2026.1-cp39-cp39-linux_x86_64.whl").touch()
    assert run(tool, "--into", tmp_path).stdout == f"{wheel}\n"

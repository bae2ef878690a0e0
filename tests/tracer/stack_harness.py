"""Builds the stack walkers alone, as a library and as programs, for the tests that call them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.needs import require_python
from vram.cpython_layouts import MINORS

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
sys.path.insert(0, str(NATIVE))

import build  # noqa: E402


def sanitized() -> bool:
    """Whether `make sanitize` runs these tests."""
    return "libasan" in os.environ.get("LD_PRELOAD", "")


def compile_c(output: Path, *arguments: str) -> Path:
    """Compile the walkers together with a test's own source, without warnings."""
    more = build.SANITIZE if sanitized() else ()
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *more, *arguments]
    line = [*build.compiler(), *flags, "-o", str(output), "-pthread", "-ldl"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return output


@pytest.fixture(scope="session")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    walkers = [NATIVE / "tracer" / f"{name}.c" for name in ("python_stack", "native_stack", "call_frames")]
    output = tmp_path_factory.mktemp("stacks") / "libharness.so"
    return compile_c(
        output, "-fPIC", "-shared", "-fvisibility=hidden", *map(str, (HERE / "harness.c", *walkers))
    )


@pytest.fixture(params=MINORS, ids=lambda minor: f"3.{minor}")
def python(request: pytest.FixtureRequest) -> str:
    """An interpreter of each version that is on this machine."""
    return require_python(f"3.{request.param}")


def run_program(python: str, program: str, harness: Path, *arguments: str) -> dict[str, Any]:
    """What one of the programs beside this file printed; it must end well."""
    # With malloc in place of Python's own allocator, the sanitizer sees a read past the end of any object.
    changes = {"PYTHONDONTWRITEBYTECODE": "1", **({"PYTHONMALLOC": "malloc"} if sanitized() else {})}
    command = [python, "-W", "ignore", str(HERE / program), str(harness), *arguments]
    done = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
    assert not done.returncode, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@cache
def config(python: str, name: str) -> str:
    """A value of the interpreter's sysconfig; "include" is the folder of its headers."""
    code = (
        "import sys, sysconfig as s; n = sys.argv[1];"
        "print(s.get_path(n) if n in s.get_path_names() else s.get_config_var(n) or '')"
    )
    asked = subprocess.run([python, "-c", code, name], capture_output=True, text=True, check=True)
    return asked.stdout.strip()

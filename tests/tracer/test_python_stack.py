"""The walker of Python's frames finds what Python's own traceback finds, in every supported version."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.needs import needs, require_python, skip_without
from tests.tracer.stack_harness import (
    HERE,
    NATIVE,
    build,
    compile_c,
    config,
    harness,
    python,
    run_program,
    sanitized,
)

pytestmark = pytest.mark.native
__all__ = ["harness", "python"]


def test_frames_are_those_of_the_traceback(python: str, harness: Path) -> None:
    """Functions, files and lines, with the GIL and without it, wherever Python code can be running."""
    answer = run_program(python, "stack_situations.py", harness)
    assert answer["number"] == 0, answer["differences"]
    assert len(answer["counts"]) == 20
    assert all(answer["counts"].values())


def test_frames_while_python_ends(python: str, harness: Path) -> None:
    """In functions of atexit and in finalizers; none in a thread that Python has already forgotten."""
    answer = run_program(python, "stack_checks.py", harness, "at_exit")
    assert answer["number"] == 0, answer["differences"]
    assert answer["compared"] == 4


def test_stamps_tell_code_objects_apart(python: str, harness: Path) -> None:
    answer = run_program(python, "stack_checks.py", harness, "stamps")
    assert answer["number"] == 0, answer["differences"]


def test_lines_of_every_instruction(python: str, harness: Path) -> None:
    """The line tables of the standard library; all of it, 15 s a version, where VRAM_WHOLE_LIBRARY is set."""
    folder = Path(config(python, "stdlib"))
    skipped = {"test", "site-packages"}
    files = sorted(path for path in folder.rglob("*.py") if path.exists() and skipped.isdisjoint(path.parts))
    if "VRAM_WHOLE_LIBRARY" not in os.environ:
        files = random.Random(len(files)).sample(files, 12)
    answer = run_program(python, "stack_checks.py", harness, "line_tables", *map(str, files))
    assert answer["number"] == 0, answer["differences"]
    assert answer["compared"] > 2000


def test_the_header_is_written_from_the_table() -> None:
    """`make native` writes it anew after src/vram/cpython_layouts.py has changed."""
    assert build.PYTHON_LAYOUTS.read_text() == build.format_python_layouts()


def test_offsets_are_those_of_the_headers(python: str, tmp_path: Path) -> None:
    """The table of offsets, against the headers of each interpreter that has some."""
    headers = Path(config(python, "include"))
    if not (headers / "internal" / "pycore_runtime.h").exists():
        skip_without("python-files", "the interpreter has no headers here")
    # Python's own headers do not compile without warnings.
    program = compile_c(
        tmp_path / "layout", "-w", f"-I{headers}", f"-I{headers}/internal", str(HERE / "layout.c")
    )
    done = subprocess.run([program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8", "3.13t", "3.15"])
def test_other_versions_are_left_alone(version: str, harness: Path) -> None:
    python = require_python(version)
    code = (
        "import ctypes, sys; harness = ctypes.CDLL(sys.argv[1]); version = harness.harness_version;"
        "version.restype = ctypes.c_char_p; numbers = harness.harness_find(), harness.harness_count(10);"
        "sys.stdout.write('%d %d %s' % (numbers + (version().decode(),)))"
    )
    done = subprocess.run([python, "-c", code, harness], capture_output=True, text=True, check=True)
    state, frames, found = done.stdout.split()
    assert (state, frames) == ("2", "0")
    assert found.startswith(f"{version.rstrip('t')}.")


@pytest.mark.parametrize("python", [13, 14], ids=["3.13", "3.14"], indirect=True)
def test_a_damaged_table_of_offsets_is_refused(python: str, harness: Path) -> None:
    """Offsets that cannot be are refused; a table that is read is one whose frames can be walked.

    Pythons before 3.13 publish none.
    """
    answers = run_program(python, "stack_refusals.py", harness)
    assert answers["none"] == [[1, 3]]
    assert answers["header"] == [[2, 0]] * 4
    # What is not read may be anything; every answer came from a process that did not crash.
    assert all(each in ([2, 0], [1, 3]) for each in answers["offsets"])
    assert answers["offsets"].count([2, 0]) >= 2 * 24


def test_python_that_is_loaded_later_and_finalized(python: str, tmp_path: Path) -> None:
    """In a C program: found when it is there; no frames before and after it, nor in a thread left over."""
    library = Path(config(python, "LIBDIR"), config(python, "INSTSONAME"))
    if library.suffix == ".a" or not library.exists():
        has_own_libc = any(Path(python).parents[1].glob("lib/*/libc.so.6"))
        skip_without(
            "python-library" if has_own_libc else "python-files", "the interpreter has no shared library here"
        )
    source = NATIVE / "tracer" / "python_stack.c"
    program = compile_c(tmp_path / "embed", str(HERE / "embed.c"), str(source))
    environment = {**os.environ, "PYTHONHOME": config(python, "prefix")}
    done = subprocess.run([program, library], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-2000:]


@needs("no-sanitizers", there=not sanitized(), detail="the sanitizers make everything slower")
def test_a_walk_of_twenty_frames_is_fast(python: str, harness: Path) -> None:
    """It takes about 50 ns; five times that allows for a slow and busy machine."""
    answer = run_program(python, "stack_checks.py", harness, "speed")
    assert answer["frames"] == 20
    assert answer["walk_ns"] < 750

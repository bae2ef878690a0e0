"""The articles' C++ programs, compiled by nvcc: what they do not free is found at its line.

compute-sanitizer, where it is installed, must find the same.

python -m pytest --real-gpu -s tests/hardware/test_native_leaks.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.examples.leaks import CPP, EXAMPLES, UNFREED, source_of
from tests.hardware.conftest import Record
from tests.needs import skip_without
from tests.patience import PATIENCE_S
from vram.cli.tracing import read_view
from vram.model.trace import stack_of
from vram.trace.places import place
from vram.units import MIB

sys.path.insert(0, str(EXAMPLES))
import compiling

pytestmark = [pytest.mark.gpu, pytest.mark.shares_gpu]

CHECK_FAILED = 90
VRAM = [sys.executable, "-m", "vram"]
# What is called from a wrapper, from thrust, and from a library: the line of the program is the place.
THROUGH = """\
#include <cuda_runtime.h>
#include <thrust/device_vector.h>
static void *wrapper(size_t nbytes) {
    void *memory = nullptr;
    cudaMalloc(&memory, nbytes);
    return memory;
}
static void first() { wrapper(4 << 20); }
static void second() { wrapper(2 << 20); }
static void by_thrust() { new thrust::device_vector<int>(2 << 20); }
int main() {
    first();
    second();
    by_thrust();
    return 0;
}
"""


def build(source: Path, runtime: str) -> tuple[Path, dict[str, str]]:
    if compiling.nvcc() is None:
        skip_without("cuda-toolkit", "nvcc is not installed")
    tools = compiling.with_nvcc(runtime)
    searched = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), tools.libraries]))
    made = replace(tools, command=(*tools.command, "-g", "-O2")).build(source)
    return made.path, {**os.environ, "LD_LIBRARY_PATH": searched}


def record_program(
    program: Path, environment: dict[str, str], trace: Path
) -> subprocess.CompletedProcess[str]:
    command = [
        *VRAM,
        "run",
        "-o",
        str(trace),
        "--check",
        "leaks=0",
        "--check",
        "unfreed=0",
        "--",
        str(program),
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def sanitizer() -> str | None:
    """compute-sanitizer, which lies beside nvcc."""
    compiler = compiling.nvcc()
    beside = Path(compiler).resolve().parent / "compute-sanitizer" if compiler else None
    return shutil.which("compute-sanitizer") or (str(beside) if beside and beside.exists() else None)


def sanitizer_leaks(program: Path, environment: dict[str, str]) -> tuple[int, int] | None:
    """Bytes and allocations that it says leaked; None where it is missing, or says nothing about leaks."""
    found = sanitizer()
    if found is None:
        return None
    command = [found, "--tool", "memcheck", "--leak-check", "full", str(program)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    said = re.search(r"LEAK SUMMARY: (\d+) bytes leaked in (\d+) allocations", done.stdout + done.stderr)
    return (int(said[1]), int(said[2])) if said else None


@pytest.mark.parametrize("runtime", ["static", "shared"])
@pytest.mark.parametrize("name", CPP)
def test_the_articles_programs(name: str, runtime: str, tmp_path: Path, record: Record) -> None:
    program, environment = build(source_of(name), runtime)
    done = record_program(program, environment, tmp_path / "t.vram")
    view = read_view([str(tmp_path / "t.vram")])
    found = [(leak.verdict, place(stack_of(view, leak.site.stack)), leak.site) for leak in view.leaks]
    nbytes, count = sum(site.nbytes for *_, site in found), sum(site.count for *_, site in found)
    theirs = sanitizer_leaks(program, environment) if runtime == "static" else None
    record(program=name, runtime=runtime, unfreed=[nbytes, count], compute_sanitizer=theirs)
    expected = UNFREED.get(name)
    if expected is None:
        assert (done.returncode, found) == (0, []), done.stderr
    else:
        assert done.returncode == CHECK_FAILED, done.stderr
        assert {verdict for verdict, *_ in found} == {"not freed"}
        places = {(at.function, Path(at.file).name, at.line) for _, at, _ in found if at is not None}
        assert places == {expected[:3]}
        assert (nbytes, count) == (expected.nbytes, expected.count)
    assert theirs in (None, (nbytes, count))


@pytest.mark.parametrize("runtime", ["static", "shared"])
def test_wrappers_and_templates(runtime: str, tmp_path: Path, record: Record) -> None:
    (tmp_path / "through.cu").write_text(THROUGH)
    program, environment = build(tmp_path / "through.cu", runtime)
    record_program(program, environment, tmp_path / "t.vram")
    view = read_view([str(tmp_path / "t.vram")])
    found = {}
    for leak in view.leaks:
        at = place(stack_of(view, leak.site.stack))
        assert at is not None
        found[leak.site.nbytes] = (at.function, Path(at.file).name, at.line)
    said = subprocess.run([*VRAM, "report", str(tmp_path / "t.vram")], capture_output=True, text=True).stdout
    record(runtime=runtime, places=sorted(map(str, found.values())))
    assert found[4 * MIB] == found[2 * MIB] == ("wrapper", "through.cu", 5)
    assert found[8 * MIB] == ("by_thrust", "through.cu", 10)
    assert re.search(r"4\.0 MiB from first  \S*through\.cu:8\n", said), said
    assert re.search(r"2\.0 MiB from second  \S*through\.cu:9\n", said), said

"""The articles' programs, as written and fixed, on the virtual GPU: memory at each step, and output."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.examples.expected import EXPECTED, differences
from tests.needs import needs, require
from tests.patience import PATIENCE_S
from vram.units import GIB
from vram.virtualgpu import VirtualGpu

EXAMPLES = Path(__file__).parents[2] / "examples"
CPP = [name for name in EXPECTED if not name.startswith("threads/")]
PYTHON = [name for name in EXPECTED if name.startswith("threads/")]
COMPILERS = ("c++", "g++", "clang++")

needs_cpp = needs(
    "compiler",
    there=any(map(shutil.which, COMPILERS)),
    detail=f"there is no C++ compiler ({', '.join(COMPILERS)})",
)
needs_nvcc = needs("nvcc")


def run(gpu: VirtualGpu, name: str, *options: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What examples/steps.py measured of one program."""
    argv = [sys.executable, EXAMPLES / "steps.py", "--json", *options, name]
    done = gpu.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["programs"]
    if result["skipped"]:
        require(result["uses"].lower(), detail=result["skipped"])
    return dict(result)


@pytest.fixture
def small_gpu(native_libraries: Path) -> Iterator[VirtualGpu]:
    """A GPU with room for a context and not for 1 GiB besides."""
    with VirtualGpu.create(memory_bytes=2 * GIB) as gpu:
        yield gpu


@needs_nvcc
@pytest.mark.parametrize("name", CPP)
def test_compiled_by_nvcc(virtual_gpu: VirtualGpu, name: str) -> None:
    assert differences(run(virtual_gpu, name)) == []


@needs_cpp
@pytest.mark.parametrize("name", CPP)
def test_compiled_with_our_declarations(virtual_gpu: VirtualGpu, name: str) -> None:
    assert differences(run(virtual_gpu, name, "--declarations")) == []


@pytest.mark.parametrize("name", PYTHON)
def test_threads(virtual_gpu: VirtualGpu, name: str) -> None:
    assert differences(run(virtual_gpu, name, "--declarations")) == []


@needs_cpp
def test_a_program_that_frees_nothing_leaks_nothing_into_the_next_run(virtual_gpu: VirtualGpu) -> None:
    for _ in range(3):
        result = run(virtual_gpu, "out-of-memory/1_exception_as_written", "--declarations")
        assert differences(result) == []


@needs_cpp
def test_the_gpu_that_is_read_is_the_one_that_is_used(two_virtual_gpus: VirtualGpu) -> None:
    """Whatever the environment says that CUDA's first GPU is."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "1"}
    result = run(two_virtual_gpus, "flush/1_free_fixed", "--declarations", env=environment)
    assert differences(result) == []


@needs_cpp
@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("after-exit/1_free_as_written", ["the memory is free"]),
        ("after-exit/2_reset_as_written", ["the memory is free and the device is reset"]),
        ("out-of-memory/1_exception_as_written", ["error: no memory"]),
    ],
)
def test_as_written_a_full_gpu_is_a_success(small_gpu: VirtualGpu, name: str, output: list[str]) -> None:
    result = run(small_gpu, name, "--declarations")
    assert max(step["mib"] for step in result["steps"]) == 527
    assert (result["exit_code"], result["output"]) == (0, output)


@needs_cpp
@pytest.mark.parametrize(
    "name",
    [
        "after-exit/1_free_fixed",
        "after-exit/2_reset_fixed",
        "out-of-memory/1_exception_fixed",
        "out-of-memory/2_reset_only_fixed",
    ],
)
def test_fixed_a_full_gpu_is_an_error(small_gpu: VirtualGpu, name: str) -> None:
    result = run(small_gpu, name, "--declarations")
    (said,) = result["output"]
    assert result["exit_code"] == 1
    assert said.startswith(
        "cudaMalloc failed: cudaErrorMemoryAllocation (out of memory): requested 1073741824 bytes"
    )


@needs_cpp
def test_only_the_fixed_program_notices_that_nothing_was_erased(virtual_gpu: VirtualGpu) -> None:
    virtual_gpu.fail("cuMemsetD*", error="INVALID_VALUE")
    as_written = run(virtual_gpu, "flush/2_zero_as_written", "--declarations")
    assert (as_written["exit_code"], as_written["output"]) == (0, [])
    fixed = run(virtual_gpu, "flush/2_zero_fixed", "--declarations")
    assert fixed["exit_code"] == 1
    assert fixed["output"][-1].startswith("cudaMemset(secret.data(), 0, secret.size_bytes()) failed: ")


def test_every_program_is_in_the_table_with_its_memory() -> None:
    """examples/README.md shows what the tests expect."""
    rows = re.findall(
        r"^\| \[[^\]]+\]\(([^)]+)\) \|.*\| ([^|]+) \|$", (EXAMPLES / "README.md").read_text(), re.M
    )
    assert dict(rows) == {_file(name): expected.steps for name, expected in EXPECTED.items()}


def test_every_program_is_tested_and_has_its_fixed_version() -> None:
    found = {str(path.relative_to(EXAMPLES).with_suffix("")) for path in EXAMPLES.glob("*/[0-9]_*")}
    assert found == set(EXPECTED)
    as_written = {name.removesuffix("_as_written") for name in EXPECTED if name.endswith("_as_written")}
    assert len(as_written) == 15
    assert as_written == {name.partition("_fixed")[0] for name in EXPECTED if "_fixed" in name}


def _file(name: str) -> str:
    return f"{name}.py" if name.startswith("threads/") else f"{name}.cpp"

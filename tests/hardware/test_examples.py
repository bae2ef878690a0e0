"""The articles' programs with NVIDIA's own runtime, shared and static: memory as on the virtual GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.examples.expected import EXPECTED, NOISE_MIB, differences

pytestmark = pytest.mark.gpu

STEPS = Path(__file__).parents[2] / "examples" / "steps.py"
CPP_FOLDERS = ("after-exit", "no-process", "out-of-memory", "flush")
LIMIT_S = 40.0


def measured(*options: str) -> dict[str, Any]:
    argv = [sys.executable, STEPS, "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def results(real_gpu: bool, evidence: str | None) -> dict[tuple[str, str | None], dict[str, Any]]:
    """Every program by its name and by how the runtime was linked; kept where evidence is asked for."""
    if not real_gpu:
        pytest.skip("needs a real GPU: --real-gpu")
    if not (os.environ.get("NVCC") or shutil.which("nvcc")):
        pytest.skip("nvcc is not installed")
    began = time.monotonic()
    answer = measured("all")
    answer["programs"] += measured("--cudart", "static", *CPP_FOLDERS)["programs"]
    answer["seconds"] = round(time.monotonic() - began, 1)
    if evidence is not None:
        Path(f"{evidence}-examples.json").write_text(json.dumps(answer, indent=1) + "\n")
    found = {(each["program"], each["runtime"]): each for each in answer["programs"]}
    found["seconds", None] = {"seconds": answer["seconds"]}
    return found


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("runtime", ["shared", "static"])
def test_memory_at_each_step(results: dict[Any, dict[str, Any]], name: str, runtime: str) -> None:
    python = name.startswith("threads/")
    if python and runtime == "static":
        pytest.skip("a Python program links nothing")
    result = results[name, None if python else runtime]
    if result["skipped"]:
        pytest.skip(result["skipped"])
    assert differences(result, NOISE_MIB) == []


def test_all_of_it_is_quick(results: dict[Any, dict[str, Any]]) -> None:
    assert results["seconds", None]["seconds"] < LIMIT_S

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
from tests.needs import require, skip_without

pytestmark = pytest.mark.gpu

STEPS = Path(__file__).parents[2] / "examples" / "steps.py"
LIMIT_S = 40.0

PYTHON = [(name, None) for name in EXPECTED if name.startswith("threads/")]
CPP = [(name, runtime) for name in EXPECTED for runtime in ("shared", "static") if (name, None) not in PYTHON]


@pytest.fixture(scope="module")
def measured(real_gpu: bool, evidence: str | None) -> dict[str, Any]:
    """What examples/steps.py measured, and how long it took; kept where evidence is asked for."""
    if not real_gpu:
        skip_without("real-gpu", "needs --real-gpu")
    if not (os.environ.get("NVCC") or shutil.which("nvcc")):
        skip_without("cuda-toolkit", "nvcc is not installed")
    argv = [sys.executable, STEPS, "--json", "--cudart", "both", "all"]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    seconds = round(time.monotonic() - began, 1)
    assert done.returncode == 0, done.stderr
    if evidence is not None:
        Path(f"{evidence}-examples.json").write_text(done.stdout)
    return json.loads(done.stdout) | {"seconds": seconds}


@pytest.mark.parametrize(("name", "runtime"), [*CPP, *PYTHON])
def test_memory_at_each_step(measured: dict[str, Any], name: str, runtime: str | None) -> None:
    results = {(each["program"], each["runtime"]): each for each in measured["programs"]}
    result = results[name, runtime]
    if result["skipped"]:
        require(result["uses"].lower(), detail=result["skipped"])
    assert differences(result, NOISE_MIB) == []


def test_all_of_it_is_quick(measured: dict[str, Any]) -> None:
    assert measured["seconds"] < LIMIT_S

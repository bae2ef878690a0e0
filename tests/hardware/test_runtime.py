"""NVIDIA's CUDA runtime still answers what the virtual GPU's was built after (tests/virtualgpu/runtime)."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.needs import skip_without
from vram.virtualgpu.programs import driver

HERE = Path(__file__).parents[1] / "virtualgpu" / "runtime"

# A second runtime of another version is not on every machine.
NEEDS_TWO = "two-runtimes"


def test_the_vendors_runtime_answers_as_recorded() -> None:
    library = driver.runtime_library()
    if library is None:
        skip_without("cuda-toolkit", "there is no CUDA runtime library here")
    version = ctypes.c_int()
    library.cudaRuntimeGetVersion(ctypes.byref(version))
    recorded = json.loads((HERE / f"h200-{version.value // 1000}.json").read_text())
    command = [sys.executable, str(HERE / "answers.py"), library._name]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
    for answers in (found, recorded):
        del answers["properties"], answers[NEEDS_TWO]  # the first is this machine's own
    assert found == recorded


def test_kernels_and_broken_contexts_are_as_recorded(tmp_path: Path) -> None:
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None:
        skip_without("cuda-toolkit", "there is no nvcc here")
    program = tmp_path / "launches"
    subprocess.run([nvcc, "-arch=native", "-o", str(program), str(HERE / "launches.cu")], check=True)
    found = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60).stdout
    assert found.splitlines() == (HERE / "h200-launches.txt").read_text().splitlines()

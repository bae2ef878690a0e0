"""vram.hpp with NVIDIA's own runtime, shared and static: what tests/header holds on the virtual GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.header.test_header import CHECKS, HERE, INCLUDE, SOURCES
from tests.needs import skip_without

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["static", "shared"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two programs that nvcc has built, with its runtime linked as the parameter says."""
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if nvcc is None:
        skip_without("cuda-toolkit", "there is no nvcc here")
    folder = tmp_path_factory.mktemp("header")
    options = [nvcc, "-std=c++17", "-arch=native", "-cudart", request.param, f"-I{INCLUDE}"]
    builds = [
        subprocess.Popen([*options, *map(str, sources), "-o", folder / name])
        for name, sources in (("checks", SOURCES), ("kernel", (HERE / "kernel.cu", SOURCES[1])))
    ]
    assert [build.wait(120) for build in builds] == [0, 0]
    return folder


def run(*words: str | Path) -> str:
    libraries = ":".join(filter(None, [os.environ.get("LD_LIBRARY_PATH", ""), "/usr/local/cuda/lib64"]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": path}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("check", [*CHECKS, "no_room", "scopes"])
def test_holds_on_hardware(programs: Path, check: str) -> None:
    assert run(programs / "checks", check).endswith("done\n")


def test_a_kernel_writes_through_a_view(programs: Path) -> None:
    run(programs / "kernel")

"""The lab as a program on a virtual GPU, and who is left of it afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.patience import until, until_gone
from vram.model.lab import LabReport, Result
from vram.virtualgpu import VirtualGpu

PROGRAM = [sys.executable, "-m", "vram", "lab"]

Lab = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lab(virtual_gpu: VirtualGpu) -> Lab:
    """Run ``vram lab`` on a virtual GPU, as if on a terminal of 80 columns."""

    def run(*argv: str, gpu: VirtualGpu = virtual_gpu) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "80"}
        return gpu.run([*PROGRAM, *argv], env=environment, capture_output=True, text=True)

    return run


def results_of(ended: subprocess.CompletedProcess[str]) -> dict[str, Result]:
    report = msgspec.json.decode(ended.stdout, type=LabReport)
    return {result.experiment: result for result in report.results}


def only_result(ended: subprocess.CompletedProcess[str]) -> Result:
    (result,) = results_of(ended).values()
    return result


def processes_on(gpu: VirtualGpu) -> set[int]:
    """Every living process that was started under this GPU."""
    mark = f"VRAM_VIRTUAL_GPU={gpu.folder}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def assert_clean(gpu: VirtualGpu) -> None:
    """No process of the lab is left, and no byte of its memory."""
    assert processes_on(gpu) == set()
    check = gpu.run([sys.executable, "-m", "vram", "check", "--json"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


def wait_until(is_so: Callable[[], Any], process: subprocess.Popen[Any]) -> None:
    """Wait until something is so; a process that ends before it is so has failed."""

    def answer() -> Any:
        ended = process.poll() is not None
        found = is_so()
        assert found or not ended, "it ended before it was so"
        return found

    until(answer)


def wait_gone(pids: set[int]) -> None:
    """Wait until every one of *pids* has ended."""
    for pid in pids:
        until_gone(pid)

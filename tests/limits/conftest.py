"""A virtual GPU of a driver that knows limits, control groups on it, and programs and vram in them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, Popen, run
from typing import Any

import pytest

from tests.reclaim.conftest import NO_DOOR
from vram.virtualgpu import VirtualGpu

HOLDER = Path(__file__).parents[1] / "virtualgpu" / "holder.py"
POD = "/kubepods.slice/kubepods-pod0d0c1c51_0e4c_4f3e_8a64_6b8bfb2a3a11.slice"
LEAF = f"{POD}/cri-containerd-{'ab' * 32}.scope"


class LimitedMachine:
    """One machine: its GPU, its control groups, and vram run in one of these."""

    def __init__(self, gpu: VirtualGpu, private: Path) -> None:
        self.gpu = gpu
        private.mkdir(mode=0o700, exist_ok=True)
        folders = dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(private))
        self.private = private
        self.environment = gpu.environment() | folders | {"COLUMNS": "100", "NO_COLOR": "1"} | NO_DOOR

    def inside(self, cgroup: str | None) -> dict[str, str]:
        return self.environment | ({"VRAM_VIRTUAL_CGROUP": cgroup} if cgroup else {})

    def vram(self, *words: str, code: int = 0, cgroup: str | None = None) -> CompletedProcess[str]:
        command = [sys.executable, "-m", "vram", *words]
        done = run(command, env=self.inside(cgroup), stdin=DEVNULL, capture_output=True, text=True)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def why(self, cgroup: str | None = None) -> dict[str, Any]:
        """Its first GPU, which must balance to the byte, and the codes of all findings."""
        done = self.vram("why", "--json", "--deadline", "60s", cgroup=cgroup)
        answer = json.loads(done.stdout)
        found: dict[str, Any] = answer["gpus"][0]
        assert sum(entry["nbytes"] or 0 for entry in found["entries"]) == found["total_bytes"]
        found["codes"] = [finding["code"] for finding in answer["findings"]]
        return found

    def limit(self, cgroup: str, words: str, *more: str) -> None:
        self.vram("limit", "--gpu", "0", "--cgroup", cgroup, words, "--yes", *more)


def kinds(gpu: dict[str, Any]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for entry in gpu["entries"]:
        sums[entry["kind"]] = sums.get(entry["kind"], 0) + (entry["nbytes"] or 0)
    return sums


@pytest.fixture
def machine(native_libraries: Path, tmp_path: Path) -> Iterator[LimitedMachine]:
    with VirtualGpu.create(driver_version="615.71.09") as gpu:
        gpu.add_cgroup(LEAF)
        gpu.add_cgroup("/user.slice/user-1000.slice")
        yield LimitedMachine(gpu, tmp_path / "private")


@pytest.fixture
def hold(machine: LimitedMachine) -> Iterator[Callable[..., Popen[str]]]:
    """Start programs that hold GPU memory in a control group; all are gone after the test."""
    started: list[Popen[str]] = []

    def start(nbytes: int, cgroup: str | None = None, *words: str, fails: bool = False) -> Popen[str]:
        argv = [sys.executable, str(HOLDER), str(nbytes), "0", *words]
        process = Popen(argv, env=machine.inside(cgroup), stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit() != fails
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()

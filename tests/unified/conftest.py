"""A virtual GPU without memory of its own, programs that hold some of the machine's through it, and vram."""

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
from vram.virtualgpu.demos import DemoProgram

HOLDER = Path(__file__).parents[1] / "virtualgpu" / "holder.py"


class SharedMachine:
    """One machine like a DGX Spark, and vram run on it."""

    def __init__(self, gpu: VirtualGpu, private: Path) -> None:
        self.gpu = gpu
        private.mkdir(mode=0o700, exist_ok=True)
        folders = dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(private))
        self.environment = gpu.environment() | folders | {"COLUMNS": "80", "NO_COLOR": "1"} | NO_DOOR

    def vram(self, *words: str, code: int = 0, given: str | None = None) -> CompletedProcess[str]:
        how: dict[str, Any] = {"stdin": DEVNULL} if given is None else {"input": given}
        command = [sys.executable, "-m", "vram", *words]
        done = run(command, env=self.environment, capture_output=True, text=True, **how)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return done

    def ask(self, *words: str, code: int = 0, given: str | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.vram(*words, "--json", code=code, given=given).stdout)
        return found

    def why(self) -> dict[str, Any]:
        """Its one GPU, which must balance to the byte."""
        found: dict[str, Any] = self.ask("why", "--deadline", "60s")["gpus"][0]
        assert sum(entry["nbytes"] or 0 for entry in found["entries"]) == found["total_bytes"]
        return found

    def of_kind(self, kind: str) -> int:
        return sum(entry["nbytes"] for entry in self.why()["entries"] if entry["kind"] == kind)


@pytest.fixture
def machine(native_libraries: Path, tmp_path: Path) -> Iterator[SharedMachine]:
    with VirtualGpu.create(unified=True) as gpu:
        yield SharedMachine(gpu, tmp_path / "private")


@pytest.fixture
def hold(machine: SharedMachine) -> Iterator[Callable[[int], Popen[str]]]:
    """Start programs that hold GPU memory; all are gone after the test."""
    started: list[Popen[str]] = []

    def start(nbytes: int) -> Popen[str]:
        words = [sys.executable, str(HOLDER), str(nbytes), "0"]
        process = Popen(words, env=machine.environment, stdin=PIPE, stdout=PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def ghost(machine: SharedMachine) -> Iterator[DemoProgram]:
    """A dead process's memory, held by its forked child."""
    with DemoProgram(machine.gpu, "forks.orphan") as demo:
        demo.kill("parent")
        yield demo

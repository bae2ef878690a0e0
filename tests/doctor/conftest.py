"""The doctor as a program: on a virtual GPU, with folders that are the test's alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.patience import PATIENCE_S
from tests.virtualgpu.conftest import HOLDER
from vram.virtualgpu import VirtualGpu

PROGRAM = [sys.executable, "-m", "vram", "doctor"]


class Told(NamedTuple):
    """What ``vram doctor --json`` said, by check."""

    code: int
    verdict: str
    checks: dict[str, dict[str, Any]]
    raw: dict[str, Any]

    def state(self, check: str) -> str:
        return str(self.checks[check]["state"])

    def seen(self, check: str) -> str:
        return str(self.checks[check]["seen"])


def told(done: subprocess.CompletedProcess[str]) -> Told:
    assert done.stderr == "", done.stderr
    raw = json.loads(done.stdout)
    return Told(done.returncode, raw["verdict"], {each["check"]: each for each in raw["checks"]}, raw)


def in_the_first_namespace() -> bool:
    return os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC


class Clinic:
    """One virtual GPU, and whoever was started on it."""

    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        self.gpu = gpu
        self.state, self.runtime = folder / "state", folder / "runtime"
        for each in (self.state, self.runtime):
            each.mkdir(mode=0o700)
        self._started: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        folders = {"XDG_STATE_HOME": str(self.state), "XDG_RUNTIME_DIR": str(self.runtime), "COLUMNS": "80"}
        return self.gpu.environment() | folders | more

    def run(self, *words: str, before: Sequence[str] = (), **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*before, *PROGRAM, *words],
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def ask(self, *words: str, before: Sequence[str] = (), **more: str) -> Told:
        return told(self.run("--json", *words, before=before, **more))

    def start(self, argv: Sequence[str], **more: str) -> subprocess.Popen[str]:
        """A process on the GPU, ready: its first line is read."""
        process = subprocess.Popen(
            argv, env=self.environment(**more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    def holder(self, nbytes: int = 0, **more: str) -> subprocess.Popen[str]:
        return self.start([sys.executable, str(HOLDER), str(nbytes), "0"], **more)

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def clinic(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Clinic]:
    place = Clinic(virtual_gpu, tmp_path)
    yield place
    place.close()


@pytest.fixture(scope="module")
def no_driver(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the doctor with an environment in which no driver can be found."""
    hidden = ("VRAM_VIRTUAL_GPU", "LD_LIBRARY_PATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("none")), "COLUMNS": "80"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *words], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )

    return run

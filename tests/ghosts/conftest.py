"""Where the ghosts walk: a virtual GPU, or with ``--real-gpu`` the machine's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ghosts import evidence
from tests.patience import PATIENCE_S
from vram.units import MIB
from vram.virtualgpu.demos import DemoProgram

PLAYED = pytest.StashKey[list[pytest.TestReport]]()

CONTEXT_MOST = 700 * MIB
"""A bare context is charged less than this on every GPU that was measured."""


class Machine:
    """A machine with a GPU: starts demos on it and asks vram about them."""

    def __init__(self, environment: dict[str, str], *, real: bool) -> None:
        self._environment = environment
        self._demos: list[DemoProgram] = []
        self.real = real

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        added = options.pop("env", {})
        return subprocess.Popen(argv, env={**added, **self._environment}, **options)

    def demo(self, program: str, nbytes: int, *, stages: int = 0) -> DemoProgram:
        """Play *program* up to the stage so many turns after its first."""
        demo = DemoProgram(self, program, nbytes)
        self._demos.append(demo)
        for _ in range(stages):
            demo.go()
        return demo

    def vram(self, *words: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        argv = [*prefix, sys.executable, "-m", "vram", *words]
        return subprocess.run(argv, env=self._environment, capture_output=True, text=True, timeout=PATIENCE_S)

    def why(self, *, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
        """The answer of ``vram why --json``; its balance is checked whoever asks."""
        done = self.vram("why", "--json", "--deadline", "60s", prefix=prefix)
        assert done.returncode == 0, (done.stderr, done.stdout[-3000:])
        answer: dict[str, Any] = json.loads(done.stdout)
        for gpu in answer["gpus"]:
            assert sum(entry["nbytes"] or 0 for entry in gpu["entries"]) == gpu["total_bytes"]
        return answer

    def close(self) -> None:
        for demo in self._demos:
            demo.close()


@pytest.fixture
def machine(real_gpu: bool, request: pytest.FixtureRequest) -> Iterator[Machine]:
    if real_gpu:
        place = Machine(dict(os.environ), real=True)
    else:
        gpu = request.getfixturevalue("virtual_gpu")
        place = Machine(gpu.environment(), real=False)
    yield place
    place.close()


def entries(answer: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [entry for gpu in answer["gpus"] for entry in gpu["entries"] if entry["kind"] == kind]


def held_by(answer: dict[str, Any], pid: int) -> int:
    """Bytes whose holder is *pid*, over all GPUs."""
    listed = [entry for gpu in answer["gpus"] for entry in gpu["entries"]]
    return sum(entry["nbytes"] or 0 for entry in listed if entry["holder"] and entry["holder"]["pid"] == pid)


def finding(answer: dict[str, Any], code: str, pid: int) -> dict[str, Any]:
    """The one finding of *code* that names *pid*."""
    (found,) = [each for each in answer["findings"] if each["code"] == code and pid in each["pids"]]
    return found


def is_charge(nbytes: int, allocated: int) -> bool:
    """Whether a charge is an allocation and one context."""
    return allocated < nbytes < allocated + CONTEXT_MOST


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    on_the_machine = "machine" in getattr(item, "fixturenames", ())
    if report.when == "call" and on_the_machine:
        item.config.stash.setdefault(PLAYED, []).append(report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep what a run on real hardware showed, where $VRAM_EVIDENCE names a folder for it."""
    folder, played = os.environ.get("VRAM_EVIDENCE"), session.config.stash.get(PLAYED, [])
    if folder and played and session.config.getoption("--real-gpu"):
        answer = Machine(dict(os.environ), real=True).why()
        evidence.write(Path(folder), answer, played)

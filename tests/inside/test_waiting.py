"""What a question costs a program: trim collects only where that is asked for; every answer says the cost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM
from tests.inside.conftest import PROGRAMS
from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.search_path import search_path
from vram.reach import injectors
from vram.units import MIB, interruption
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS as DRIVER

pytestmark = needs("ptrace", there="ptrace" in injectors.BY_NAME, detail="there is no injector by ptrace")

# What its collection takes at least; much less would mean that the wait was not seen.
COLLECTION_S = 0.2
COST = re.compile(r"stopped for \d+\.\d ms, other threads waited at most \d+(\.\d)? ms")


class Waiting:
    """The program, and vram asking it."""

    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        folder.chmod(0o700)
        self._folder = folder
        private = {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        self._environment = {**os.environ, **gpu.environment(), **private}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "waiting.py"), str(32 * MIB)],
            env={**self._environment, "PYTHONPATH": str(DRIVER)},
            stdin=-1,
            stdout=-1,
            text=True,
        )
        self.pid = str(self._hear()["pid"])

    def _hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        heard: dict[str, Any] = json.loads(self.process.stdout.readline())
        return heard

    def told(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._hear()

    def vram(self, *words: str) -> str:
        done = subprocess.run(
            [*PROGRAM, *words],
            env={**self._environment, "PYTHONPATH": search_path()},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def trim(self, *words: str) -> dict[str, Any]:
        receipt: dict[str, Any]
        (receipt,) = json.loads(self.vram("trim", self.pid, "--json", "--deadline", "60s", *words))["trimmed"]
        return receipt


@pytest.fixture
def waiting(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Waiting]:
    program = Waiting(virtual_gpu, tmp_path)
    yield program
    program.process.kill()
    program.process.communicate()


def test_a_trim_collects_nothing_unless_that_is_asked_for(waiting: Waiting) -> None:
    receipt = waiting.trim()
    assert receipt["answer"]["collected"] == 0
    assert waiting.told()["collections"] == 0
    assert receipt["stopped_s"] > 0
    assert receipt["waited_s"] >= 0


def test_a_collection_is_counted_as_the_wait_that_it_was(waiting: Waiting) -> None:
    receipt = waiting.trim("--collect")
    told = waiting.told()
    assert told["collections"] == 1
    assert told["longest_s"] > COLLECTION_S / 2
    assert receipt["waited_s"] > COLLECTION_S / 2


def test_every_answer_says_what_it_cost(waiting: Waiting) -> None:
    for words in (
        ("trim", waiting.pid),
        ("inside", waiting.pid),
        ("why", waiting.pid),
        ("why", "--deep"),
        ("attach", waiting.pid, "-o", "a.vram"),
    ):
        said = " ".join(waiting.vram(*words, "--deadline", "60s").split())
        assert COST.search(said), said
    assert waiting.told()["collections"] == 0


def test_so_does_every_answer_for_programs(waiting: Waiting) -> None:
    inside = json.loads(waiting.vram("inside", waiting.pid, "--json", "--deadline", "60s"))["inside"]
    (gpu,) = json.loads(waiting.vram("why", "--deep", "--json", "--deadline", "60s"))["gpus"]
    (note,) = gpu["notes"]
    for told in (inside, note, waiting.trim()):
        assert told["stopped_s"] > 0
        assert told["waited_s"] >= 0


@pytest.mark.parametrize(
    ("stopped_s", "waited_s", "words"),
    [
        (0.00112, 0.00317, "stopped for 1.1 ms, other threads waited at most 3.2 ms"),
        (None, 0.0254, "not stopped, other threads waited at most 25 ms"),
        (0.0011, None, "stopped for 1.1 ms"),
    ],
)
def test_the_words(stopped_s: float | None, waited_s: float | None, words: str) -> None:
    assert interruption(stopped_s, waited_s) == words

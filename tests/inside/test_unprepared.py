"""Programs that nobody prepared, on every Python, asked by the command itself: told, unharmed, as before."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM
from tests.inside.conftest import MINORS, Subject
from tests.needs import needs, require_python
from tests.patience import PATIENCE_S
from tests.search_path import search_path
from vram.reach import injectors
from vram.units import MIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

VISITS = 2

pytestmark = needs("ptrace", there="ptrace" in injectors.BY_NAME, detail="there is no injector by ptrace")


class Place:
    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        folder.chmod(0o700)
        private = {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        self.environment = {**os.environ, **gpu.environment(), **private}

    def subject(self, python: str) -> Subject:
        return Subject(
            python, "-", str(32 * MIB), environment={**self.environment, "PYTHONPATH": str(PROGRAMS)}
        )

    def inside(self, pid: int) -> dict[str, Any]:
        done = subprocess.run(
            [*PROGRAM, "inside", str(pid), "--json", "--via", "ptrace", "--deadline", "60s"],
            env={**self.environment, "PYTHONPATH": search_path()},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)["inside"]
        return told


@pytest.fixture
def place(virtual_gpu: VirtualGpu, tmp_path: Path) -> Place:
    return Place(virtual_gpu, tmp_path)


@pytest.fixture(params=[minor for minor in MINORS if minor < 14], ids=lambda minor: f"3.{minor}")
def subject(request: pytest.FixtureRequest, place: Place) -> Iterator[Subject]:
    started = place.subject(require_python(f"3.{request.param}"))
    yield started
    started.close()


def names(told: dict[str, Any]) -> dict[str, int]:
    return {each["held_by"]: each["nbytes"] for each in told["answer"]["groups"]}


def test_one_that_rests(place: Place, subject: Subject) -> None:
    untouched = subject.tell("census")
    told = place.inside(subject.pid)
    before = subject.tell("census")
    for _ in range(VISITS):
        assert names(place.inside(subject.pid)) == names(told)
    after = subject.tell("census")
    assert told["via"] == "ptrace"
    assert told["stopped_s"] is not None
    assert names(told)["subject.py: history[0…9]"] == 10 * MIB
    assert names(told)["subject.py: trainer.model.layers[0…3].weight.grad"] == 16 * MIB
    for part in ("main", "threads", "tasks", "references"):
        assert after[part] == untouched[part], part
    assert after["modules"] == before["modules"]
    # Fewer may be there: the collector stops following tuples in which nothing can be found.
    assert {kind: n for kind, n in after["kinds"].items() if n > before["kinds"].get(kind, 0)} == {}
    assert not any("vram" in name for name in after["modules"])
    assert after["calls"] == []


def test_one_that_works(place: Place, subject: Subject) -> None:
    subject.tell("spin")
    told = place.inside(subject.pid)
    assert names(told)["subject.py: history[0…9]"] == 10 * MIB
    assert subject.tell("census")["calls"] == []

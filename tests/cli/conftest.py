"""The command line in this process, on snapshots written by hand; as a program, on a virtual GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.ledger.world import CONTEXT, OVERHEAD, World
from vram.cli.app import main
from vram.model.observation import ProbeRun
from vram.units import GIB

PROGRAM = [sys.executable, "-m", "vram"]


class Answer(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Answer]
Write = Callable[..., str]


@pytest.fixture
def vram(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command in this process, as if on a terminal of 80 columns without colour."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*argv: str) -> Answer:
        code = main(argv)
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def snapshot(tmp_path: Path) -> Write:
    """Write a world to a file; *probes* say how the survey went."""

    def write(world: World, *probes: ProbeRun) -> str:
        survey = msgspec.structs.replace(world.survey(), probes=probes or (ProbeRun("nvml", "ok", 0.01),))
        path = tmp_path / "snapshot.json"
        path.write_bytes(msgspec.json.encode(survey))
        return str(path)

    return write


@pytest.fixture
def busy(snapshot: Write) -> str:
    """Two GPUs; a healthy process on GPU 0, and a forked child that keeps its dead parent's memory."""
    world = World()
    world.gpu(0, used=6 * GIB + 2 * CONTEXT + 2 * OVERHEAD).gpu(1)
    world.process(100, executable="/usr/bin/python3").charge(100, 2 * GIB + CONTEXT).files(100, family=100)
    world.process(201, executable="/usr/bin/python3", forked=True)
    world.charge(200, 4 * GIB + CONTEXT).files(201, family=200)
    return snapshot(world)


@pytest.fixture
def idle(snapshot: Write) -> str:
    return snapshot(World().gpu(0).gpu(1))


@pytest.fixture
def half_lost(snapshot: Write) -> str:
    return snapshot(World().gpu(0).lost(1), ProbeRun("nvml", "lost", 0.01, "GPU is lost"))


@pytest.fixture
def no_driver(snapshot: Write) -> str:
    return snapshot(World(), ProbeRun("nvml", "unsupported", 0.01, "the library is not installed"))

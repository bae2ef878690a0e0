"""Which line of a recorded program grows: the one that keeps, not the one that allocates most."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recording.conftest import Workplace
from vram.trace import growing
from vram.trace.growing import growing_line

PROGRAM = """\
from program import *
context()
def load(): return alloc(96 << 20)
def step(): free(alloc(512 << 20))
def keep(): return alloc(1 << 20)
held = [load()]
say("loaded")
for line in sys.stdin:
    for _ in range(20): step()
    held.append(keep())
    say("kept")
"""
KEEPS = next(at for at, line in enumerate(PROGRAM.splitlines(), 1) if line.startswith("def keep"))


@pytest.fixture
def recorded(work: Workplace, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "train.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "train.py")],
        env=work.recorder_environment("trace"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loaded\n"
    yield process
    process.kill()
    process.communicate()


def keep(process: subprocess.Popen[str], times: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    for _ in range(times):
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "kept\n"


def test_it_is_the_line_that_keeps(recorded: subprocess.Popen[str]) -> None:
    keep(recorded, 40)
    assert growing_line(recorded.pid) == f"train.py:{KEEPS}"


def test_there_is_none_where_nothing_is_recorded() -> None:
    assert growing_line(os.getpid()) is None


def test_a_recording_that_is_too_long_is_not_read(
    recorded: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(recorded, 2)
    monkeypatch.setattr(growing, "MAX_NBYTES", 10)
    assert growing_line(recorded.pid) is None

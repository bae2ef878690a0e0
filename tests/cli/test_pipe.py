"""What the output carries: in a pipe all of it, one line a process, and memory of the dead under one name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.golden.screens import Machine
from vram.model.observation import ProbeRun

SHORT = "python train.py"
LONG = " ".join(["python", *(f"--option-{number}=value" for number in range(40)), "--last"])
SCRIPT = ("python", "-c", "\nimport torch\n\nwhile True:\n    torch.ones(3)\n" + "    step()\n" * 30)
PIDS = {4_194_300, 4_194_301, 4_194_302, 4_194_303}


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A ghost with a long name, and a process whose command is a program; their pids have seven digits."""
    world = Machine().job(4_194_302, SHORT, 12).job(4_194_303, SHORT, 3)
    for gpu in range(8):
        world.charge(4_194_300, world.hold(gpu, 5), gpu=gpu)
    world.started(4_194_301, LONG, forked=True)
    world.files(4_194_301, minors=tuple(range(8)), family=4_194_300)
    survey = replace(world.with_gpus(8).survey(), probes=(ProbeRun("nvml", "ok", 0.01),))
    observations = tuple(
        replace(each, facts=replace(each.facts, argv=SCRIPT))
        if each.process is not None and each.process.pid == 4_194_303 and each.probe == "proc.processes"
        else each
        for each in survey.observations
    )
    path = tmp_path / "machine.json"
    path.write_bytes(msgspec.json.encode(replace(survey, observations=observations)))
    return path


def printed(machine: Path, *words: str, columns: int | None = None) -> str:
    """What a pipe gets; with *columns*, as if it were so wide a terminal."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if columns is not None:
        environment["COLUMNS"] = str(columns)
    argv = [sys.executable, "-m", "vram", *words, "--from", str(machine)]
    return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("words", [("why",), ("ps",), ("who",), ("why", "4194301")], ids=" ".join)
def test_in_a_pipe_nothing_is_cut(machine: Path, words: tuple[str, ...]) -> None:
    text = printed(machine, *words)
    assert LONG in " ".join(text.split())
    titles = [line for line in text.splitlines() if line.startswith("●")]
    assert not any("…" in line for line in titles)


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize(
    "words", [("why",), ("ps",), ("who",), ("why", "-v"), ("why", "4194300")], ids=" ".join
)
def test_a_pid_is_shown_as_a_whole_or_not_at_all(machine: Path, words: tuple[str, ...], columns: int) -> None:
    """A pid that has lost a digit is another process's, and somebody kills it."""
    text = printed(machine, *words, columns=columns)
    assert "4194301" in text
    text = text.replace(str(machine), "")  # its folder has a number of its own
    for found in re.findall(r"\d+", text):
        assert int(found) in PIDS or found not in " ".join(map(str, PIDS)) or len(found) < 3, found


@pytest.mark.parametrize("columns", [None, 200])
@pytest.mark.parametrize("words", [("why",), ("ps",), ("who",), ("why", "4194303")], ids=" ".join)
def test_a_program_on_the_command_line_is_one_line_of_its_first_words(
    machine: Path, words: tuple[str, ...], columns: int | None
) -> None:
    text = printed(machine, *words, columns=columns)
    assert "python -c import torch" in text
    assert "\\n" not in text
    assert "step()\n" not in text


@pytest.mark.parametrize("words", [("why",), ("why", "-v"), ("who",), ("why", "4194300")], ids=" ".join)
def test_memory_of_the_dead_is_a_ghost_everywhere(machine: Path, words: tuple[str, ...]) -> None:
    text = printed(machine, *words).lower()
    assert "ghost" in text
    assert "orphaned" not in text
    assert "leftover" not in text

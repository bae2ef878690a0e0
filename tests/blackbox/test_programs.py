"""Demo programs keep to their protocol: they end with their input, and so does every process of theirs."""

from __future__ import annotations

import re

import pytest
from machine import PROGRAMS, Machine, Program, ProgramFailed

CALL = re.compile(r"^    protocol\.main\((.*)\)$", re.MULTILINE)
# They need arguments, or lines that say what to do, at every stage.
DIRECTED = {"checkpoint", "memory.granularity"}
SMALL = 32 * 1024**2


def situations() -> list[str]:
    """Every program that runs by itself, with each situation that it knows."""
    found = []
    for path in PROGRAMS.glob("*.py"):
        names = [name for call in CALL.findall(path.read_text()) for name in call.split(", ")]
        found += [path.stem] if len(names) == 1 else [f"{path.stem}.{name}" for name in names]
    return sorted(set(found) - {"exports.measure"})


ALL = situations()
STAGED = [name for name in ALL if name not in DIRECTED]


@pytest.mark.parametrize("name", ALL)
def test_end_of_input_ends_every_process(machine: Machine, name: str) -> None:
    """No process has to be killed, and no byte stays on the GPU."""
    before = machine.read().used
    program = Program(name, (SMALL,), machine.env)
    program.close()
    assert program.lingering == []
    assert machine.read().used == before


@pytest.mark.parametrize("name", ALL)
def test_a_killed_program_leaves_no_process(machine: Machine, name: str) -> None:
    """Workers die with the process that started them; one that is meant to outlive it ends with the input."""
    program = Program(name, (SMALL,), machine.env)
    program.kill()
    program.close()
    assert program.lingering == []


@pytest.mark.parametrize("name", STAGED)
def test_every_stage_can_be_reached(machine: Machine, name: str) -> None:
    """Going on past the last stage ends the program: it writes nothing more and exits cleanly."""
    with machine.start(name, SMALL) as program:
        stages, end = run_to_its_end(program)
    assert "exit status 0" in end
    assert len(set(stages)) == len(stages)


def run_to_its_end(program: Program) -> tuple[list[str], str]:
    """Send a program on until it ends; return its stages and how it ended."""
    stages = [program["stage"]]
    while True:
        try:
            stages.append(program.go()["stage"])
        except ProgramFailed as end:
            return stages, str(end)


def test_a_program_that_fails_says_so(machine: Machine) -> None:
    """An allocation larger than the GPU is reported as a line, not as a hang."""
    with pytest.raises(ProgramFailed, match="cuMemAlloc_v2 answered 2"):
        Program("memory.plain", (2**50,), machine.env)


def test_an_unknown_situation_names_those_that_exist(machine: Machine) -> None:
    with pytest.raises(ProgramFailed, match="one of orphan, pool, child_closes, not 'orphans'"):
        Program("forks.orphans", (SMALL,), machine.env)


def test_every_program_is_tried() -> None:
    assert len(ALL) == 24

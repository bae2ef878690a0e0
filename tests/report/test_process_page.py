"""`vram why PID` is one screen: the verdict, what to do, its family, how we know; on eight GPUs too."""

from __future__ import annotations

import re
import sys

import pytest
from rich.cells import cell_len

from tests.golden.screens import Machine
from tests.report.test_any_screen import lines
from vram.diagnosis.engine import diagnose
from vram.ledger.processes import concerning, findings_about
from vram.report import tree
from vram.report.layout import RenderOptions
from vram.report.process_page import HEIGHT, process_page
from vram.report.process_tree import who
from vram.units import GIB
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import DemoProgram

SECTIONS = ["What to do, least harm first", "Its family", "How we know"]


def page(machine: Machine, pid: int, width: int, *, ascii: bool = False) -> list[str]:
    ledger = machine.with_gpus(8).ledger()
    options = RenderOptions(width, ascii=ascii)
    family = tree.family(who(ledger), pid, options, brief=True)
    about = findings_about(diagnose(ledger), pid)
    return lines(process_page(concerning(ledger, pid), pid, about, ("a note",), family, options), width)


def everywhere(workers: int) -> Machine:
    """A job with memory on each of eight GPUs, and forked workers that have all of its files."""
    machine = Machine().started(3000, "python train.py --a-long-option with-a-long-value " * 3)
    machine.files(3000, minors=tuple(range(8)), family=3000)
    for gpu in range(8):
        machine.charge(3000, machine.hold(gpu, 10), gpu=gpu)
    for worker in range(3001, 3001 + workers):
        machine.started(worker, "python train.py", parent=3000, forked=True)
        machine.files(worker, minors=tuple(range(8)), family=3000)
    return machine


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("workers", [0, 1, 60])
def test_eight_gpus_are_one_screen(workers: int, width: int) -> None:
    shown = page(everywhere(workers), 3000, width)
    assert len(shown) <= HEIGHT == 24
    assert max(map(cell_len, shown)) <= width or "vram kill" in max(shown, key=cell_len)
    assert shown[2].startswith("  holds 84.0 GiB process on GPUs 0–7")
    wanted = SECTIONS if workers else [each for each in SECTIONS if each != "Its family"]
    assert [line for line in shown if line in SECTIONS] == wanted


@pytest.mark.parametrize("width", [80, 200])
def test_gpus_that_are_only_open_are_one_line(width: int) -> None:
    machine = Machine().started(3000, "python train.py").files(3000, minors=tuple(range(8)), family=3000)
    shown = page(machine.charge(3000, machine.hold(0, 10)), 3000, width)
    assert shown.count("  also has GPUs 1–7 open, holds nothing there") == 1
    assert not any(re.search(r"GPU [1-7]\b", line) for line in shown)


def test_a_dead_pid_leads_to_its_ghost_and_the_command_is_whole() -> None:
    machine = Machine()
    for gpu in range(8):
        machine.charge(2990, machine.hold(gpu, 10), gpu=gpu)
    for child in range(2991, 3021):
        machine.started(child, "python train.py", forked=True)
        machine.files(child, minors=tuple(range(8)), family=2990)
    shown = page(machine, 2990, 80, ascii=True)
    assert len(shown) <= HEIGHT
    assert all(line.isascii() for line in shown)
    assert shown[1] == "pid 2990 - dead"
    assert "ghost on GPUs 0-7" in shown[2]
    assert any(line.startswith("  vram free") for line in shown)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_raw_allocation_is_outside_frameworks_and_no_context(columns: int) -> None:
    with VirtualGpu.create(gpus=8) as gpu, DemoProgram(gpu, "memory.plain", 41 * GIB) as program:
        environment = {**gpu.environment(), "COLUMNS": str(columns), "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "vram", "why", str(program.pids["self"])]
        shown = gpu.run(argv, env=environment, capture_output=True, text=True).stdout
        assert len(shown.splitlines()) <= HEIGHT
        assert "holds 41.5 GiB outside frameworks on GPU 0\n" in shown
        assert "also has GPUs 1–7 open, holds nothing there\n" in shown
        assert "GiB context" not in shown

"""What must not sleep, or is asked for in words that mean nothing: refused before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parking.conftest import RUNNING, Machine
from tests.sleeping import programs
from tests.sleeping.conftest import Bedroom
from vram.virtualgpu import VirtualGpu

MANAGED = """
    cuda.start()
    address = cuda.out(ctypes.c_uint64, "cuMemAllocManaged", 1 * MIB, 1)
    cuda.tell("ready")
    cuda.heard()
    cuda.tell("runs")
    cuda.heard()
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("sleep", "x"), 2, "'x' is not a pid"),
        (("sleep", "--check"), 2, "--check needs a program"),
        (("sleep", "--idle", "5", "1"), 2, "has no unit"),
        (("sleep", "--port", "70000", "1"), 2, "is not a port"),
        (("sleep", "4194303"), 10, "there is no process 4194303"),
        (("wake",), 2, "no pid given"),
        (("wake", "1", "--all"), 2, "no pid given"),
        (("wake", "4194303"), 20, "does not sleep"),
    ],
)
def test_bad_words(machine: Machine, words: tuple[str, ...], code: int, said: str) -> None:
    done = machine.vram(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert not list(machine.state_home.glob("vram/waker-*"))


def test_managed_memory(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(MANAGED)
    done = bedroom.machine.vram("sleep", program.pid)
    assert done.returncode == 20
    assert "managed memory" in done.stderr
    program.go()
    assert program.told() == "runs"


def test_one_that_holds_nothing_on_a_gpu(bedroom: Bedroom) -> None:
    program = bedroom.machine.program('cuda.tell("ready"); cuda.heard()')
    done = bedroom.machine.vram("sleep", "--idle", "1min", program.pid)
    assert (done.returncode, "holds no GPU memory" in done.stderr) == (11, True)
    assert bedroom.listed() == []


def test_a_watchdog(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.PIPE, WATCHDOG_USEC="1000000")
    done = bedroom.machine.vram("sleep", program.pid)
    assert done.returncode == 20
    assert "systemd ends pid" in done.stderr
    bedroom.sleep("--anyway", program.pid)
    bedroom.wake(program.pid)


def test_the_check_touches_nothing(bedroom: Bedroom) -> None:
    program, port = bedroom.server()
    said = bedroom.sleep("--check", program.pid)
    assert "can sleep" in said
    assert f"a connection to 127.0.0.1:{port}" in said
    assert bedroom.machine.state(program.pid) == RUNNING
    checked = json.loads(bedroom.sleep("--check", "--json", program.pid))["checked"]
    assert checked["refusal"] is None
    assert not list(bedroom.folder.glob("waker-*"))


def test_the_check_says_why_not(bedroom: Bedroom) -> None:
    program = bedroom.machine.program(programs.WORKS)
    done = bedroom.machine.vram("sleep", "--check", program.pid)
    assert done.returncode == 20
    assert f"cannot sleep now: pid {program.pid} works" in done.stdout


def test_a_part_of_another_program(bedroom: Bedroom) -> None:
    first = bedroom.machine.program(programs.PIPE)
    bedroom.sleep("--idle", "1d", first.pid)
    done = bedroom.machine.vram("sleep", "--job", first.pid)
    assert done.returncode == 11  # no launcher is known
    assert bedroom.states() == {first.pid: "awake"}


class TestOnAGpuThatWorks:
    """Whose work that is the driver does not say: a program that waits for its kernels would not wake."""

    @pytest.fixture
    def virtual_gpu(self, native_libraries: Path) -> Iterator[VirtualGpu]:
        with VirtualGpu.create(utilization=37) as gpu:
            yield gpu

    def test_a_program_without_work_on_a_processor_stays_awake(self, bedroom: Bedroom) -> None:
        program = bedroom.machine.program(programs.PIPE)
        done = bedroom.machine.vram("sleep", program.pid)
        assert done.returncode != 0
        assert f"GPU 0 works, for pid {program.pid} or for another program" in done.stderr
        assert bedroom.machine.state(program.pid) == RUNNING
        bedroom.sleep("--anyway", program.pid)
        bedroom.wake(program.pid)

"""`vram run --pretend`: the command finds a smaller card, and others are not starved for it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.patience import until
from tests.recording.conftest import Workplace
from vram.units import GIB, MIB

FREE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
count, context, free, total = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
for device in range(count.value):
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
    print(free.value, flush=True)
sys.stdin.readline()
"""
# Ctrl-C does not end this one. A handler would come too late if Python were just about to read its line.
HOLD_OUT = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
{FREE.replace("sys.stdin", "signal.sigwait([signal.SIGINT]); print('interrupted', flush=True); sys.stdin")}
"""
CONTEXT = 518 * MIB


def free_after(work: Workplace, pretended: str, **environment: str) -> list[int]:
    process = work.start_vram("run", "--pretend", pretended, "--", sys.executable, "-c", FREE, **environment)
    out, err = process.communicate("\n")
    assert process.returncode == 0, err
    return [int(line) for line in out.split()]


def test_that_much_is_left_on_every_gpu_less_the_commands_own_context(two: Workplace) -> None:
    for free in free_after(two, "24GiB"):
        assert 24 * GIB - CONTEXT - 16 * MIB < free <= 24 * GIB - CONTEXT + 2 * MIB


def test_only_visible_gpus_are_held(two: Workplace) -> None:
    (free,) = free_after(two, "24GiB", CUDA_VISIBLE_DEVICES="1")
    assert free < 24 * GIB
    assert two.held(0) == 0


def test_it_is_released_with_the_command(work: Workplace) -> None:
    assert work.held(0) == 0
    free_after(work, "24GiB")
    assert work.held(0) == 0


def test_it_says_what_it_holds(work: Workplace) -> None:
    done = work.vram("run", "--pretend", "24GiB", "--", "true")
    assert "GPU 0: 24.0 GiB is free for the command; vram holds the rest of" in done.stderr


def test_a_gpu_that_others_use_is_refused(work: Workplace) -> None:
    """They would be starved for it. Nothing is launched."""
    other = work.start([sys.executable, "-c", FREE])
    assert other.stdout is not None
    other.stdout.readline()
    done = work.vram("run", "--pretend", "24GiB", "--", "touch", "launched")
    assert done.returncode == 19
    assert f"GPU 0 is not empty: 518.0 MiB is held by pid {other.pid}" in done.stderr
    assert work.files() == []


def test_more_than_the_gpu_has_is_refused(work: Workplace) -> None:
    done = work.vram("run", "--pretend", "800GiB", "--", "touch", "launched")
    assert done.returncode == 19
    assert "cannot pretend to have 800.0 GiB" in done.stderr
    assert work.files() == []


def test_without_a_gpu_it_is_refused(work: Workplace) -> None:
    done = work.vram("run", "--pretend", "1GiB", "--", "touch", "launched", CUDA_VISIBLE_DEVICES="")
    assert done.returncode != 0
    assert "cannot be pretended" in done.stderr
    assert work.files() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_released_when_vram_is_killed(work: Workplace, number: signal.Signals) -> None:
    process = work.start_vram("run", "--pretend", "24GiB", "--", sys.executable, "-c", FREE)
    assert process.stdout is not None
    process.stdout.readline()
    assert work.held(0) > 100 * GIB
    process.send_signal(number)
    process.communicate("\n")
    until(lambda: work.held(0) == 0)


def test_ctrl_c_leaves_the_ballast_until_the_command_has_ended(work: Workplace, tmp_path: Path) -> None:
    program = tmp_path / "free.py"
    program.write_text(HOLD_OUT)
    screen = work.terminal()
    screen.type(f"vram run --pretend 24GiB -- {sys.executable} {program}\n")
    screen.read_until("\n")
    screen.read_until("\n")
    screen.type("\x03")
    screen.read_until("interrupted")
    assert work.held(0) > 100 * GIB
    screen.type("\n")
    screen.read_until("ready> ")
    assert work.held(0) == 0

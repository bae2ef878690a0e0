"""Programs that go on: attached to after they allocated all that they hold, or with a peak long ago."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from tests.hardware.tracer import programs
from tests.needs import is_installed, needs
from tests.patience import until_readable
from tests.recording.conftest import PROGRAMS, Workplace
from vram.units import MIB
from vram.virtualgpu import folder

STANDINS = PROGRAMS / "standins"

# It allocated all that it holds before it is attached to, and works all the time, or when a line comes.
WORKER = """
import sys, time
from program import *
context()
held = alloc(300 << 20)
kept = []
def step():
    small, large = alloc(1 << 20), alloc(4 << 20)
    free(small)
    free(large)
def leak():
    kept.append(alloc(1 << 20))
say("ready")
if "resting" in sys.argv: sys.stdin.readline()
steps = 0
while True:
    step()
    steps += 1
    if "growing" in sys.argv and steps % 2 == 0: leak()
    time.sleep(0.002)
"""


def record(work: Workplace, argv: list[str], *options: str, seconds: str = "2s", **environment: str) -> None:
    """Attach to a program that says when it works, for some seconds; the trace is ``trace.vram``."""
    process = work.start(argv, **environment)
    assert process.stdout is not None
    until_readable(process.stdout, lambda: "it does not start")
    line = process.stdout.readline()
    assert line == "ready\n", process.communicate()[1]
    done = work.vram("attach", process.pid, "-o", "trace.vram", "--for", seconds, *options)
    assert done.returncode == 0, done.stderr


def windows(work: Workplace) -> list[dict[str, Any]]:
    done = work.vram("report", "window", "--json", "--by", "function", "--limit", "0", "trace.vram")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["windows"]
    return found


def report(work: Workplace) -> str:
    done = work.vram("report", "trace.vram", COLUMNS="80", NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(window: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"] or row["row"]["label"].split()[0]: row for row in window["rows"]}


def test_a_program_that_only_churns_is_steady(work: Workplace) -> None:
    """What it held before is a sum; what it does since has lines."""
    record(work, [sys.executable, "-c", WORKER])
    (window,) = windows(work)
    assert (window["framework"], window["trend"], window["base_nbytes"]) == (None, "steady", 0)
    assert window["before_nbytes"] > 300 * MIB
    assert window["highest_nbytes"] == 5 * MIB
    row = rows(window)["alloc"]
    assert row["made"] > 16
    assert 0 <= row["made"] - row["freed"] <= 2
    said = report(work)
    assert "Steady: no place went on growing" in said
    assert "held before recording: no lines are known" in said
    assert "step  <string>:8" in said
    assert "Never freed" not in said


def test_one_that_also_leaks_is_growing(work: Workplace) -> None:
    # What leaks in the last tenth leaks to the end: a busy machine may pause the program for 0.4 s there.
    record(work, [sys.executable, "-c", WORKER, "growing"], seconds="4s")
    (window,) = windows(work)
    assert window["trend"] == "growing"
    first = report(work).splitlines()[:24]
    (growth,) = [line for line in first if line.startswith("  +")]
    assert "none freed" in growth
    assert "leak  <string>:12" in growth


def test_a_program_that_rests_says_what_it_holds(work: Workplace) -> None:
    record(work, [sys.executable, "-c", WORKER, "resting"])
    said = report(work)
    assert "nothing was allocated since" in said
    assert "peak 0 B" not in said
    assert "held before recording: no lines are known" in said
    assert "Allocated and freed again and again: nothing" in said


CUPY = """
import time
import cupy, driver_program as driver
driver.begin()
held = cupy.use(64 << 20)
def step():
    cupy.drop(1 << 20, cupy.use(1 << 20))
print("ready", flush=True)
while True:
    step()
    time.sleep(0.002)
"""


def test_the_blocks_of_a_framework_have_a_window_of_their_own(work: Workplace) -> None:
    path = os.pathsep.join([str(STANDINS), str(programs.HERE)])
    record(work, [sys.executable, "-c", CUPY], "--framework", "cupy", PYTHONPATH=path)
    found = {window["framework"]: window for window in windows(work)}
    row = rows(found["cupy"])["use"]
    assert row["made"] > 16
    assert 0 <= row["made"] - row["freed"] <= 1
    assert not row["growing"]
    assert found["cupy"]["trend"] == "steady"
    assert found["cupy"]["highest_nbytes"] == MIB


NUMBA = """
import time
import numpy
from numba import cuda
grid = [cuda.device_array(1 << 20, dtype=numpy.uint8) for _ in range(3)]
def step():
    cuda.device_array(1 << 16, dtype=numpy.uint8)
    cuda.current_context().deallocations.clear()
print("ready", flush=True)
while True:
    step()
    time.sleep(0.002)
"""


@needs("numba.cuda")
def test_arrays_from_before_have_the_names_that_inside_finds(work: Workplace) -> None:
    record(work, [sys.executable, "-c", NUMBA], "--framework", "auto")
    done = work.vram("report", "window", "--json", "trace.vram")
    (held,) = json.loads(done.stdout)["held"]
    assert (held["framework"], held["count"], held["nbytes"]) == ("Numba", 3, 3 * MIB)
    assert "grid[0…2]" in held["name"]
    said = report(work)
    assert "Held when recording began, by name" in said
    assert "grid[0…2]" in said
    assert "step  <string>:7" in said


# It works for four times as long as it took to load, however busy the machine is.
EARLY = """
import time
start = time.monotonic()
context()
weights = alloc(8 << 20)
def load():
    parts = [alloc(64 << 20) for _ in range(4)]
    for each in parts: free(each)
def step():
    free(alloc(2 << 20))
load()
loaded, steps = time.monotonic(), 0
while steps < 200 or time.monotonic() < loaded + 4 * (loaded - start):
    step()
    steps += 1
    time.sleep(0.002)
"""


def test_a_run_whose_peak_came_early_says_what_its_second_half_did(work: Workplace) -> None:
    done = work.record("-o", "trace.vram", program=EARLY)
    assert done.returncode == 0, done.stderr
    (window,) = windows(work)
    view = work.view("trace.vram")
    assert view.gpus[0].peak_nbytes == (8 + 256) * MIB
    assert view.gpus[0].peak_ns < window["begin_ns"] == view.duration_ns // 2
    assert window["base_nbytes"] // MIB in (8, 10), "between two steps, or in one"
    assert window["highest_nbytes"] // MIB == 10
    assert (window["trend"], window["before_nbytes"]) == ("steady", None)
    said = report(work)
    assert "peak 264.0 MiB" in said
    assert "Most at the highest moment since" in said
    assert "step  <string>:11" in said.partition("Allocated and freed again and again")[2]


PYTHON_WITH_TORCH = os.environ.get("VRAM_PYTHON_WITH_TORCH") or (
    sys.executable if is_installed("torch") else None
)


@needs("torch", there=PYTHON_WITH_TORCH is not None, detail="$VRAM_PYTHON_WITH_TORCH names no PyTorch")
@pytest.mark.parametrize("state", ["steady", "growing"])
def test_a_real_pytorch_is_told_by_line_and_by_name(work: Workplace, state: str) -> None:
    # PyTorch brings NVIDIA's libcupti, which crashes on the virtual driver: ours takes its name first.
    ours = str(folder.BUILT / "libcupti.so.13")
    preload = f"{ours}:{work.environment.get('LD_PRELOAD', '')}"
    program = str(programs.HERE / "steady_program.py")
    record(work, [str(PYTHON_WITH_TORCH), program, state], "--framework", "torch", LD_PRELOAD=preload)
    found = {window["framework"]: window for window in windows(work)}
    places = rows(found["torch"])
    named = {name: row["base_nbytes"] for name, row in places.items() if row["name"]}
    assert {nbytes for name, nbytes in named.items() if "model" in name} == {64 * MIB, 48 * MIB}
    assert found["torch"]["trend"] == state
    said = report(work)
    assert "step  steady_program.py:28" in said
    assert ("← remember  steady_program.py" in said) is (state == "growing")

"""``vram inside`` and ``vram why PID`` on real processes: a virtual GPU, real libraries, an agent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.conftest import PROGRAM
from tests.guard.scoping import RAW, ROOT, environment
from tests.needs import needs
from tests.patience import PATIENCE_S
from vram.report.schema import shipped
from vram.units import MIB
from vram.virtualgpu import VirtualGpu

ARRAYS = """
import os, sys, vram
import numpy as np
from numba import cuda
class Model:
    def __init__(self):
        self.weight = cuda.device_array((1024, 1024), dtype=np.float32)
def train():
    model = Model()
    history = [cuda.device_array(8 << 20, dtype=np.uint8) for _ in range(12)]
    names = {"\\x1b[2J\\u202e": cuda.device_array(3 << 20, dtype=np.uint8)}
    vram.agent()
    print(os.getpid(), flush=True)
    sys.stdin.readline()
train()
"""
CONTEXT_ALONE = RAW + "vram.agent()\nraw.alloc(32 * MIB)\ntell(os.getpid())\nsys.stdin.readline()\n"


class Place:
    def __init__(self, gpu: VirtualGpu, folder: Path) -> None:
        folder.chmod(0o700)
        self.environment = environment(gpu) | {"XDG_RUNTIME_DIR": str(folder), "XDG_STATE_HOME": str(folder)}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, text: str) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=-1, stdout=-1, text=True, env=self.environment, cwd=ROOT
        )
        self._started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    def vram(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        argv = [*PROGRAM, *map(str, words)]
        return subprocess.run(
            argv, env=self.environment | variables, capture_output=True, text=True, timeout=PATIENCE_S
        )

    def inside(self, pid: int, *words: object) -> dict[str, Any]:
        done = self.vram("inside", pid, "--json", *words)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        jsonschema.validate(told, json.loads(shipped("inside").read_text()))
        return dict(told["inside"])

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def place(virtual_gpu: VirtualGpu, tmp_path: Path) -> Iterator[Place]:
    found = Place(virtual_gpu, tmp_path)
    yield found
    found.close()


@needs("numba.cuda")
class TestArrays:
    def test_they_are_told_largest_first_with_the_names_of_the_program(self, place: Place) -> None:
        answer = place.inside(place.start(ARRAYS))["answer"]
        told = [(each["count"], each["nbytes"], each["dtype"], each["held_by"]) for each in answer["groups"]]
        where = " in train()"
        assert [(count, nbytes, dtype) for count, nbytes, dtype, _ in told] == [
            (12, 96 * MIB, "uint8"),
            (1, 4 * MIB, "float32"),
            (1, 3 * MIB, "uint8"),
        ]
        assert [name.partition(" local ")[2] for *_, name in told] == [
            f"'history'[0…11]{where}",
            f"'model'.weight{where}",
            rf"'names'['\x1b[2J\u202e']{where}",
        ]

    def test_the_parts_sum_to_what_the_driver_charges(self, place: Place) -> None:
        (split,) = place.inside(place.start(ARRAYS))["splits"]
        assert split["charged"] == sum(
            split[part] for part in ("arrays", "unseen", "cached", "pooled", "rest")
        )
        assert split["arrays"] == (96 + 4 + 3) * MIB

    def test_the_text_fits_a_terminal_and_cannot_steer_it(self, place: Place) -> None:
        done = place.vram("inside", place.start(ARRAYS), COLUMNS="80")
        assert done.returncode == 0, done.stderr
        assert max(map(len, done.stdout.splitlines())) <= 80
        assert len(done.stdout.splitlines()) <= 24
        assert all(char.isprintable() or char == "\n" for char in done.stdout)
        assert "12 × uint8" in done.stdout
        assert "context and other" in done.stdout

    def test_small_ones_can_be_left_out(self, place: Place) -> None:
        answer = place.inside(place.start(ARRAYS), "--min-size", "4MiB")["answer"]
        assert [each["count"] for each in answer["groups"]] == [12, 1]

    def test_another_gpu_has_none_of_them(self, place: Place) -> None:
        pid = place.start(ARRAYS)
        done = place.vram("inside", pid, "--gpu", "7")
        assert (done.returncode, "there is no GPU 7" in done.stderr) == (2, True)
        assert place.inside(pid, "--gpu", "0")["answer"]["groups"]


class TestRefusals:
    def test_a_process_without_arrays_says_what_holds_the_memory(self, place: Place) -> None:
        done = place.vram("inside", place.start(CONTEXT_ALONE))
        assert done.returncode == 0, done.stderr
        assert "no array on a GPU" in done.stdout
        assert "550.0 MiB context and other" in done.stdout

    def test_who_holds_nothing(self, place: Place) -> None:
        pid = place.start("import os, sys; print(os.getpid(), flush=True); sys.stdin.readline()")
        done = place.vram("inside", pid)
        assert (done.returncode, f"pid {pid} holds no GPU memory" in done.stderr) == (11, True)

    def test_nobody(self, place: Place) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        assert place.vram("inside", gone.pid).returncode == 10

    def test_one_that_is_stopped(self, place: Place) -> None:
        pid = place.start(CONTEXT_ALONE)
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        done = place.vram("inside", pid)
        assert (done.returncode, "is stopped" in done.stderr) == (14, True)


class TestOneProcess:
    def test_its_lines_and_its_inside(self, place: Place) -> None:
        pid, other = place.start(CONTEXT_ALONE), place.start(CONTEXT_ALONE)
        done = place.vram("why", pid, "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        jsonschema.validate(told, json.loads(shipped("process").read_text()))
        (gpu,) = told["gpus"]
        assert {entry["holder"]["pid"] for entry in gpu["entries"]} == {pid}
        assert {entry["kind"] for entry in gpu["entries"]} == {"context"}
        assert all(pid in finding["pids"] for finding in told["findings"])
        text = place.vram("why", pid).stdout
        assert f"pid {pid}" in text
        assert f"pid {other}" not in text

    @needs("numba.cuda")
    def test_its_largest_arrays(self, place: Place) -> None:
        text = place.vram("why", place.start(ARRAYS), "-v", COLUMNS="100").stdout
        (row,) = [line for line in text.splitlines() if "12 ×" in line]
        assert row.split()[:2] == ["96.0", "MiB"]
        assert "history" in row

    def test_a_dead_one_that_the_driver_still_lists(self, place: Place) -> None:
        """Its forked child keeps the memory: asked for the dead, the living one is named."""
        fork = (
            RAW
            + """
raw.alloc(32 * MIB)
child = os.fork()
if child:
    os._exit(0)
tell(os.getpid())
sys.stdin.readline()
"""
        )
        child = place.start(fork)
        told = json.loads(place.vram("why", "--json").stdout)
        (dead,) = {e["charged_pid"] for e in told["gpus"][0]["entries"] if e["charged_pid"]}
        asked = json.loads(place.vram("why", dead, "--json").stdout)
        (entry,) = asked["gpus"][0]["entries"]
        assert (entry["kind"], entry["holder"]["pid"], entry["charged_pid"]) == ("orphaned", child, dead)
        assert asked["findings"]

    def test_nobody_and_nothing(self, place: Place) -> None:
        gone = subprocess.Popen(["true"])
        gone.wait()
        assert place.vram("why", gone.pid).returncode == 10
        assert place.vram("why", os.getpid()).returncode == 11

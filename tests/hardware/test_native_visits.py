"""Visits to C++ programs that compute on real hardware: pools come back, recording works, none is harmed.

python -m pytest --real-gpu -s tests/hardware/test_native_visits.py
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.hardware.conftest import Record
from tests.needs import skip_without
from tests.patience import until
from tests.reach.native_visits import visit
from vram.host.local import LocalHost
from vram.reach.target_process import TargetProcess, examine
from vram.reclaim.identity import identify
from vram.units import GIB, MIB

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("native_visited.cu")
PROGRAMS, VISITS, AT_ONCE = 50, 10, 4
SMALL, LARGE = 128 * MIB, 8 * GIB
KILLS = 20
RECORDED_ROUNDS = 5000


class Visited:
    """One program, and what it says of its own work."""

    def __init__(self, program: Path, nbytes: int) -> None:
        self.process = subprocess.Popen(
            [program, str(nbytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it has ended: {self.process.wait()}"
        return line.strip()

    def ask(self, word: str = "status") -> int:
        """How many rounds of work it has done, all of them right."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        rounds, wrong = map(int, self.hear().split())
        assert not wrong
        return rounds

    def target(self) -> TargetProcess:
        return examine(identify(LocalHost(), self.pid))

    def end(self) -> None:
        self.process.communicate("")
        assert self.process.returncode == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by nvcc, which links the runtime statically."""
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        skip_without("cuda-toolkit", "no nvcc")
    made = tmp_path_factory.mktemp("native") / "visited"
    subprocess.run([nvcc, "-O1", "-g", "-arch=native", "-o", str(made), str(SOURCE)], check=True)
    return made


@pytest.fixture
def one(program: Path) -> Iterator[Visited]:
    made = Visited(program, LARGE)
    made.hear()
    yield made
    made.process.kill()
    made.process.communicate()


def vram(*words: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "vram", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done


def middle(figures: list[float]) -> float:
    return sorted(figures)[len(figures) // 2]


def test_gibibytes_of_a_pool_come_back(one: Visited, record: Record) -> None:
    """`vram why` tells what its pool has unused, `vram trim` returns it, while the program computes."""
    assert "8.0 GiB cached" in vram("why", one.pid, "--deep").stdout
    (receipt,) = json.loads(vram("trim", one.pid, "--json").stdout)["trimmed"]
    returned = receipt["charged_before"] - receipt["charged_after"]
    assert receipt["via"] == "native"
    assert returned > LARGE - GIB
    process, took, stopped = one.target(), [], []
    for _ in range(20):
        one.ask("fill")
        began = time.monotonic()
        stopped.append(visit(process).stopped_s or 0.0)
        took.append(time.monotonic() - began)
    rounds = one.ask()
    record(
        returned_gib=returned / GIB,
        took_s=receipt["took_s"],
        visit_ms=1e3 * middle(took),
        stopped_ms=[1e3 * middle(stopped), 1e3 * max(stopped)],
        rounds=rounds,
    )
    one.end()


def test_fifty_programs_compute_on(program: Path, record: Record) -> None:
    """Fifty at once, each visited again and again: their work is right to the end."""
    programs = [Visited(program, SMALL) for _ in range(PROGRAMS)]
    try:
        for each in programs:
            each.hear()
        targets = [each.target() for each in programs]
        stopped: list[float] = []

        def visit_once(number: int) -> None:
            stopped.append(visit(targets[number % PROGRAMS], deadline_s=30.0).stopped_s or 0.0)

        began = time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(visit_once, range(PROGRAMS * VISITS)))
        took_s = time.monotonic() - began
        rounds = [each.ask() for each in programs]
        left = [each.pid for each in programs if "visitor.so" in Path(f"/proc/{each.pid}/maps").read_text()]
        for each in programs:
            each.end()
    finally:
        for each in programs:
            each.process.kill()
            each.process.communicate()
    record(
        programs=PROGRAMS,
        visits=len(stopped),
        took_s=took_s,
        stopped_ms=[1e3 * middle(stopped), 1e3 * max(stopped)],
        rounds=sum(rounds),
        still_loaded=len(left),
    )
    assert len(stopped) == PROGRAMS * VISITS
    assert min(rounds) > 0
    assert not left


def test_a_killed_visitor_harms_nobody(one: Visited, record: Record) -> None:
    process, chance = one.target(), random.Random(29)
    began = time.monotonic()
    visit(process)
    took_s = time.monotonic() - began
    for _ in range(KILLS):
        child = os.fork()
        if not child:
            try:
                while True:
                    visit(process)
            finally:
                os._exit(1)
        time.sleep(took_s * chance.uniform(0.2, 2))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        one.ask()
    visit(process)
    record(kills=KILLS, rounds=one.ask())
    one.end()


def test_a_running_program_is_recorded(one: Visited, tmp_path: Path, record: Record) -> None:
    """The recorder starts in it, sees all its allocations, and stops."""
    trace = tmp_path / "visited.vramtrace"
    vram("attach", one.pid, "-o", trace)
    before = one.ask()
    until(lambda: one.ask() >= before + RECORDED_ROUNDS)
    rounds = one.ask() - before
    found = re.search(r"([\d,]+) events", vram("attach", one.pid, "--stop").stderr)
    assert found is not None
    events = int(found[1].replace(",", ""))
    record(events=events, rounds=rounds, nbytes=trace.stat().st_size)
    assert events >= 2 * rounds
    assert "visited" in vram("report", "churn", trace).stdout
    one.end()

"""Visits by ptrace: for how long a program is stopped, what that costs its work, and whether any harms it.

VRAM_TRIES says how many visits (200): to a Python, half of them at work, half at rest, and to a C program.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cases.trim import ROOT, _private_folders
from bench.row import Row
from bench.timing import CommandFailed

TRIES = int(os.environ.get("VRAM_TRIES", "200"))
THREADS = 20
MEDIAN_S, MAX_S = 0.002, 0.005
# A C program that is visited ten times a second does its work as fast as one that is left alone.
UNDISTURBED, EVERY_S, MEASURED_S = 1.05, 0.1, 2.0


def run(turns: int) -> list[Row]:
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    from tests.reach.soak import TargetProgram, run_often

    stopped: list[float] = []
    with _private_folders():
        for state in ("busy", "read"):
            program = TargetProgram(sys.executable, state, THREADS)
            try:
                stopped += run_often(program, TRIES // 2)
            except AssertionError as error:
                raise CommandFailed(f"the program was harmed: {error}") from error
            finally:
                program.close()
    return [*_stops(stopped), *_native(turns)]


def _stops(stopped: list[float]) -> list[Row]:
    stopped.sort()
    note = f"{len(stopped)} visits, {THREADS} threads, 0 harmed"
    return [
        Row("stopped by a visit, median", stopped[len(stopped) // 2], "s", target=MEDIAN_S, note=note),
        Row("stopped by a visit, longest", stopped[-1], "s", target=MAX_S, note=note),
    ]


def _native(turns: int) -> list[Row]:
    """The same to a C program: one thread of it stops, and loads a library that unloads itself."""
    from tests.reach.native_visits import KINDS, NativeProgram, build, visit
    from tests.reach.soak import TargetProgram, run_once

    with tempfile.TemporaryDirectory() as folder, _private_folders():
        program = NativeProgram(build(Path(folder))["c"], KINDS[0], {})
        python = TargetProgram(sys.executable, "read", 1)
        try:
            process, other = program.target(), python.python()
            stopped, took, compared = [], [], []
            for _ in range(TRIES):
                began = time.perf_counter()
                stopped.append(visit(process).stopped_s or 0.0)
                took.append(time.perf_counter() - began)
                began = time.perf_counter()
                run_once(other)
                compared.append(time.perf_counter() - began)
            alone = min(_round_s(program, None) for _ in range(turns))
            visited = min(_round_s(program, lambda: visit(process)) for _ in range(turns))
            program.ask()
        except AssertionError as error:
            raise CommandFailed(f"the program was harmed: {error}") from error
        finally:
            program.close()
            python.close()
    for each in (stopped, took, compared):
        each.sort()
    middle, note = TRIES // 2, f"{TRIES} visits to a C program, 0 harmed"
    return [
        Row("one thread stopped by a visit, median", stopped[middle], "s", target=MEDIAN_S, note=note),
        Row("a visit to a C program", took[middle], "s", "to a Python", compared[middle], 1.0),
        Row("its round of work, 10 visits/s", visited, "s", "alone", alone, UNDISTURBED),
    ]


def _round_s(program: Any, visit: Callable[[], object] | None) -> float:
    """The processor time of a round of its work, while *visit* is called now and then.

    Not the time that passes: on a busy machine, that is what other programs leave to it.
    """
    before, began = program.ask()["rounds"], time.perf_counter()
    spent_s = _busiest_s(program.pid)
    while time.perf_counter() - began < MEASURED_S:
        if visit is not None:
            visit()
        time.sleep(EVERY_S)
    spent_s = _busiest_s(program.pid) - spent_s
    return float(spent_s / (program.ask()["rounds"] - before))


def _busiest_s(pid: int) -> float:
    """The processor time of the thread that has used most, the one that works."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return max(int(each.read_text().split()[0]) for each in files) / 1e9

"""Visits by ptrace: for how long a program with twenty threads is stopped, and whether any visit harms it.

VRAM_TRIES says how many visits (200), half of them at work, half at rest.
"""

from __future__ import annotations

import os
import sys

from bench.cases.trim import ROOT, _private_folders
from bench.row import Row
from bench.timing import CommandFailed

TRIES = int(os.environ.get("VRAM_TRIES", "200"))
THREADS = 20
MEDIAN_S, MAX_S = 0.002, 0.005


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
    stopped.sort()
    note = f"{len(stopped)} visits, {THREADS} threads, 0 harmed"
    return [
        Row("stopped by a visit, median", stopped[len(stopped) // 2], "s", target=MEDIAN_S, note=note),
        Row("stopped by a visit, longest", stopped[-1], "s", target=MAX_S, note=note),
    ]

"""CPU time of one reading of `vram watch`, beside starting `vram why --json` each time."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from bench.company import holders
from bench.row import Row
from bench.timing import CommandFailed, program

GIB = 1024**3
EVERY_S = 0.25
SHORT_S, LONG_S = 1.0, 4.0
HALF = 0.5


def run(turns: int) -> list[Row]:
    vram = [program("vram") or "vram"]
    if not Path(vram[0]).exists():
        vram = [sys.executable, "-m", "vram"]
    readings = (LONG_S - SHORT_S) / EVERY_S
    watched, asked = [], []
    with holders(4, 2 * GIB):
        for _ in range(max(1, turns // 3)):  # each takes five seconds
            asked.append(_cpu_s([*vram, "why", "--json"]))
            short_s, long_s = (
                _cpu_s([*vram, "watch", "--every", f"{EVERY_S}s", "--for", f"{seconds}s"])
                for seconds in (SHORT_S, LONG_S)
            )
            watched.append((long_s - short_s) / readings)
    again = "vram why --json, started each time"
    ours, theirs = statistics.median(watched), statistics.median(asked)
    return [Row("vram watch, CPU time of a reading", ours, "s", again, theirs, HALF)]


def _cpu_s(command: list[str]) -> float:
    """Run *command* to its end. Returns its CPU time and that of the processes it waited for."""
    silence = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silence)
    _, status, usage = os.wait4(pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise CommandFailed(f"{' '.join(command)}: exit status {code}")
    return usage.ru_utime + usage.ru_stime

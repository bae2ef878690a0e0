"""What a scope costs around nothing, and what a recorder costs before it has anything to record."""

from __future__ import annotations

import subprocess
import sys

from bench.native import ROOT
from bench.row import Row

AROUND_NOTHING_S = 20e-6
NOISE = 1.05


def run(turns: int) -> list[Row]:
    argv = [sys.executable, str(ROOT / "bench" / "scoped.py"), str(max(15, turns))]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    bare_s, awake_s, without_s, recorded_s = map(float, done.stdout.split())
    return [
        Row("vram.scope around nothing", bare_s, "s", target=AROUND_NOTHING_S, note="no driver loaded"),
        Row(
            "vram.scope around nothing, with a context",
            awake_s,
            "s",
            note="two readings of the virtual driver",
        ),
        Row("work under vram.on_oom()", recorded_s, "s", "without it", without_s, NOISE),
    ]

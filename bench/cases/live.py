"""What it costs to flush where nothing is to be flushed, and to name what refers to many arrays."""

from __future__ import annotations

import subprocess
import sys

from bench.native import ROOT
from bench.row import Row

NOTHING_TO_DO_S = 5e-3
HUNDRED_THOUSAND_S = 1.0


def run(turns: int) -> list[Row]:
    argv = [sys.executable, str(ROOT / "bench" / "alive.py"), str(min(turns, 9))]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    flushed_s, named_s, counted_s = map(float, done.stdout.split())
    return [
        Row("vram.flush with nothing to do", flushed_s, "s", target=NOTHING_TO_DO_S, note="with a context"),
        Row(
            "vram.live on 100,000 arrays, with referrers",
            named_s,
            "s",
            target=HUNDRED_THOUSAND_S,
            note="a third each in a list, a dict, instances",
        ),
        Row("vram.live on 100,000 arrays, sizes alone", counted_s, "s"),
    ]

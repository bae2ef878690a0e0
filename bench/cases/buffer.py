"""What `vram.Buffer` adds to the driver's own allocation and free.

On an H200 that pair costs 73 µs, so a tenth is 7.3 µs. A call of the virtual driver costs
microseconds where a real one costs a fraction of one: what Python adds is measured beside the
same four calls made by hand, and the whole is shown for information. The ratio on real
hardware is measured by tests/hardware/test_owner.py.
"""

from __future__ import annotations

import subprocess
import sys

from bench.native import ROOT
from bench.row import Row

NBYTES, PAIRS = 4 * 1024**2, 200
TENTH_OF_A_REAL_PAIR_S = 7.3e-6


def run(turns: int) -> list[Row]:
    argv = [sys.executable, str(ROOT / "bench" / "pair.py"), str(NBYTES), str(max(5, turns)), str(PAIRS)]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    raw_s, same_calls_s, ours_s = map(float, done.stdout.split())
    added = Row("vram.Buffer, what Python adds", ours_s - same_calls_s, "s", target=TENTH_OF_A_REAL_PAIR_S)
    return [
        added._replace(note="a tenth of the raw pair on an H200"),
        Row("vram.Buffer and close, virtual GPU", ours_s, "s", "the raw pair", raw_s),
    ]

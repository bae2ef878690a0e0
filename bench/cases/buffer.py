"""What `vram.Buffer` adds to the driver's own allocation and free.

On an H200 that pair costs 73 µs, so a tenth is 7.3 µs. A call of the virtual driver costs
microseconds where a real one costs a fraction of one, so the bound is held on a driver that
answers at once, and the virtual GPU's ratio is shown for information. The ratio on real hardware is
measured by tests/hardware/test_owner.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.native import ROOT, build_library
from bench.row import Row

NBYTES = 4 * 1024**2
TENTH_OF_A_REAL_PAIR_S = 7.3e-6


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        build_library("instant", Path(folder) / "libcuda.so.1")
        # Turns of a millisecond, and many: some of them run undisturbed on a busy machine too.
        instant_s, over_instant_s = _pair({"LD_LIBRARY_PATH": folder}, 30 * turns, pairs=200)
    raw_s, ours_s = _pair({}, turns, pairs=200)
    added = Row("vram.Buffer and close, added to the pair", over_instant_s - instant_s, "s")
    return [
        added._replace(target=TENTH_OF_A_REAL_PAIR_S, note="a tenth of the pair on an H200"),
        Row("vram.Buffer and close, virtual GPU", ours_s, "s", "raw pair", raw_s),
    ]


def _pair(environment: dict[str, str], turns: int, *, pairs: int) -> tuple[float, float]:
    argv = [sys.executable, str(ROOT / "bench" / "pair.py"), str(NBYTES), str(turns), str(pairs)]
    variables = os.environ | {"PYTHONPATH": str(ROOT / "src")} | environment
    done = subprocess.run(argv, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    raw_s, ours_s = map(float, done.stdout.split())
    return raw_s, ours_s

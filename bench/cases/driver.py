"""What an allocation costs on the virtual GPU, so that nobody mistakes its speed for a real one's."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.native import build
from bench.row import Row

PAIRS = 2000


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        program = build("pairs", Path(folder))
        figures = [_once(program) for _ in range(max(3, turns // 3))]
    return [Row("cuMemAlloc + cuMemFree, virtual GPU", min(figures), "s", note="73 µs on an H200")]


def _once(program: Path) -> float:
    done = subprocess.run([program, str(PAIRS)], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)

"""What an allocation costs on the virtual GPU, so that nobody mistakes its speed for a real one's."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from bench.native import build
from bench.row import Row

PAIRS = 2000

RUNTIME_COSTS = 1.5
"""The runtime finds the context of each call; that must stay small beside the allocation."""


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        programs = [build(name, Path(folder)) for name in ("pairs", "runtime_pairs")]
        figures = [[_once(program) for program in programs] for _ in range(max(3, turns // 3))]
    driver, runtime = (min(column) for column in zip(*figures, strict=True))
    return [
        Row("cuMemAlloc + cuMemFree, virtual GPU", driver, "s", note="73 µs on an H200"),
        Row("cudaMalloc + cudaFree, virtual GPU", runtime, "s", "the driver's pair", driver, RUNTIME_COSTS),
    ]


def _once(program: Path) -> float:
    done = subprocess.run([program, str(PAIRS)], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)

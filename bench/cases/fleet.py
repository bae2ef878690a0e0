"""1,250 recorded nodes of 8 GPUs each through `vram fleet --snapshots`, with one worker and with two."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench import fleet_nodes
from bench.row import Row
from bench.timing import Sample, interleaved, program

NODES, GPUS = 1250, 8
TEN_SECONDS = 10.0
PEAK_BYTES = 200 * 1024**2
PARTIAL = 3  # some of its nodes lie


def run(turns: int) -> list[Row]:
    vram = [program("vram") or "vram"]
    if not Path(vram[0]).exists():
        vram = [sys.executable, "-m", "vram"]
    with tempfile.TemporaryDirectory() as folder:
        nbytes = fleet_nodes.write(Path(folder), NODES, GPUS)
        samples = _race(vram, folder, min(turns, 5))
        history = _history(vram, folder)
    what = f"vram fleet, {NODES:,} nodes of {GPUS} GPUs"
    one, two = samples["1 worker"], samples["2 workers"]
    return [
        Row(f"{what}, 2 workers", two.median_s, "s", target=TEN_SECONDS),
        Row(f"{what}, 1 worker", one.median_s, "s", note="for comparison"),
        Row(f"{what}, --json", samples["json"].median_s, "s", target=TEN_SECONDS),
        Row(f"{what}, peak memory of the largest process", two.peak_rss_bytes, "bytes", target=PEAK_BYTES),
        Row("one node's snapshot, mean", nbytes / NODES, "bytes"),
        Row("one run's Parquet file", history, "bytes"),
    ]


def _race(vram: list[str], folder: str, turns: int) -> dict[str, Sample]:
    words = [*vram, "fleet", "--from", folder]
    commands = {
        "1 worker": [*words, "--workers", "1"],
        "2 workers": [*words, "--workers", "2"],
        "json": [*words, "--workers", "2", "--json"],
    }
    return interleaved(commands, turns=turns, accepted=(PARTIAL,))


def _history(vram: list[str], folder: str) -> int:
    """How large the file is that one run adds; 0 where PyArrow is missing."""
    with tempfile.TemporaryDirectory() as history:
        words = [*vram, "fleet", "--from", folder, "--parquet", history]
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        return sum(file.stat().st_size for file in Path(history).rglob("*.parquet"))

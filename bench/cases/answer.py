"""From start to answer: `vram`, as text and as JSON, beside what people run today."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.company import holders
from bench.row import Row
from bench.timing import interleaved, program

GIB = 1024**3
CONTENDERS = {
    "gpustat": ("gpustat",),
    "gpustat --json": ("gpustat", "--json"),
    "nvitop -1": ("nvitop", "-1"),
}
BARE = "a bare pynvml script"
# Measured on an H200, driver 580.159.04: nvmlInit takes 12 ms and the first handle 6.
INIT = "nvmlInit* slow=0.018"
HALF = 0.5
PEAK_BYTES = 60 * 1024**2


@contextmanager
def _as_slow_as_hardware(vram: list[str]) -> Iterator[None]:
    if "VRAM_VIRTUAL_GPU" not in os.environ:
        yield
        return
    subprocess.run([*vram, "virtual", "fault", INIT], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        subprocess.run([*vram, "virtual", "fault", "--clear"], check=True, stdout=subprocess.DEVNULL)


def run(turns: int) -> list[Row]:
    vram = [program("vram") or "vram"]
    if not Path(vram[0]).exists():  # where nothing can be installed it runs from its sources
        vram = [sys.executable, "-m", "vram"]
    commands = {
        "vram": vram,
        "vram why": [*vram, "why"],
        "vram why --json": [*vram, "why", "--json"],
        BARE: [sys.executable, str(Path(__file__).parents[1] / "bare_pynvml.py")],
    }
    for name, (tool, *words) in CONTENDERS.items():
        if path := program(tool):
            commands[name] = [path, *words]
    with holders(4, 2 * GIB), _as_slow_as_hardware(vram):
        samples = interleaved(commands, turns=turns)

    def row(ours: str, theirs: str, target: float) -> Row:
        beside = samples[theirs].median_s if theirs in samples else None
        return Row(ours, samples[ours].median_s, "s", theirs, beside, target)

    return [
        row("vram", "gpustat", 1.0),
        row("vram why", "gpustat", 1.0),
        row("vram why --json", BARE, 1.0),
        row("vram why --json", "gpustat --json", HALF),
        row("vram why --json", "nvitop -1", HALF),
        Row(
            "vram why --json, peak memory",
            samples["vram why --json"].peak_rss_bytes,
            "bytes",
            target=PEAK_BYTES,
        ),
    ]

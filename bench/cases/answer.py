"""From start to answer: `vram`, as text and as JSON, beside what people run today."""

from __future__ import annotations

import sys
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
HALF = 0.5
PEAK_BYTES = 60 * 1024**2


def run(turns: int) -> list[Row]:
    vram = program("vram") or "vram"
    commands = {
        "vram": [vram],
        "vram why": [vram, "why"],
        "vram why --json": [vram, "why", "--json"],
        BARE: [sys.executable, str(Path(__file__).parents[1] / "bare_pynvml.py")],
    }
    for name, (tool, *words) in CONTENDERS.items():
        if path := program(tool):
            commands[name] = [path, *words]
    with holders(4, 2 * GIB):
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

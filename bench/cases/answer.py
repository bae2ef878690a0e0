"""From start to answer: `vram why --json` beside what people run today."""

from __future__ import annotations

from bench.company import holders
from bench.row import Row
from bench.timing import interleaved, program

GIB = 1024**3
CONTENDERS = {"gpustat --json": ("gpustat", "--json"), "nvitop -1": ("nvitop", "-1")}
HALF = 0.5
PEAK_BYTES = 60 * 1024**2


def run(turns: int) -> list[Row]:
    vram = program("vram") or "vram"
    commands = {"vram": [vram, "why", "--json"]}
    for name, (tool, *words) in CONTENDERS.items():
        if path := program(tool):
            commands[name] = [path, *words]
    with holders(4, 2 * GIB):
        samples = interleaved(commands, turns=turns)
    ours = samples.pop("vram")
    theirs = {name: sample.median_s for name, sample in samples.items()}
    return [
        *(Row("vram why --json", ours.median_s, "s", name, theirs.get(name), HALF) for name in CONTENDERS),
        Row("vram why --json, peak memory", ours.peak_rss_bytes, "bytes", target=PEAK_BYTES),
    ]

"""What `import vram` adds to a program that imports it."""

from __future__ import annotations

import sys

from bench.row import Row
from bench.timing import interleaved

BOUND_S = 0.030


def run(turns: int) -> list[Row]:
    commands = {
        "vram": [sys.executable, "-c", "import vram"],
        "nothing": [sys.executable, "-c", "pass"],
    }
    samples = interleaved(commands, turns=turns)
    ours, nothing = samples["vram"].median_s, samples["nothing"].median_s
    return [
        Row('python -c "import vram"', ours, "s", 'python -c "pass"', nothing),
        Row("what import vram adds", max(0.0, ours - nothing), "s", target=BOUND_S),
    ]

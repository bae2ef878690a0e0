"""How long every experiment of the lab takes together, and what one costs beside its own waiting.

On a virtual GPU contexts come at once: the bound is meant for hardware, where `make gpu` holds it.
"""

from __future__ import annotations

import json
import subprocess

from bench.row import Row
from bench.timing import CommandFailed, program

WHOLE_S = 120.0
ANSWERED = (0, 3)


def run(turns: int) -> list[Row]:
    done = subprocess.run([program("vram") or "vram", "lab", "run", "--json"], capture_output=True, text=True)
    if done.returncode not in ANSWERED:
        raise CommandFailed(f"vram lab run: {done.stderr.strip()}")
    took = [result["took_s"] for result in json.loads(done.stdout)["results"]]
    return [
        Row(f"vram lab run, {len(took)} experiments", sum(took), "s", target=WHOLE_S),
        Row("vram lab run, the middle one", sorted(took)[len(took) // 2], "s"),
    ]

"""The search through 10,000 processes with 30 descriptors each, beside `fuser` and `lsof`.

All three answer "who has the GPU's files open?"; vram's figure is its whole command, with
the driver's answers, the ledger and the judgement.
"""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

from bench.company import holders, standing
from bench.native import build
from bench.row import Row
from bench.timing import Sample, interleaved, program

GIB = 1024**3
PROCESSES, DESCRIPTORS = 10_000, 30
CONTENDERS = {"fuser": ("fuser",), "lsof": ("lsof", "-n", "-P")}
ONE_SECOND = 1.0
PEAK_BYTES = 60 * 1024**2


def run(turns: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder, holders(4, 2 * GIB):
        crowd = build("crowd", Path(folder))
        with standing([str(crowd), str(PROCESSES), str(DESCRIPTORS)]):
            samples = _race(min(turns, 3))  # lsof takes half a minute for each
    return _rows(samples)


def _race(turns: int) -> dict[str, Sample]:
    files = sorted(glob.glob(os.path.join(os.environ["VRAM_VIRTUAL_GPU"], "dev", "nvidia*")))
    commands = {"vram": [program("vram") or "vram", "why", "--json"]}
    for name, (tool, *words) in CONTENDERS.items():
        if path := program(tool):
            commands[name] = [path, *words, *files]
    # lsof answers 1 where one of the named files is open in no process.
    return interleaved(commands, turns=turns, accepted=(0, 1))


def _rows(samples: dict[str, Sample]) -> list[Row]:
    ours = samples.pop("vram")
    theirs = {name: sample.median_s for name, sample in samples.items()}
    what = "vram why --json, 10,000 processes"
    return [
        Row(what, ours.median_s, "s", target=ONE_SECOND),
        *(Row(what, ours.median_s, "s", name, theirs.get(name), 1.0) for name in CONTENDERS),
        Row(f"{what}, peak memory", ours.peak_rss_bytes, "bytes", target=PEAK_BYTES),
    ]

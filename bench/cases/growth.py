"""How the answer's cost grows with the processes: 1,000, 10,000 and 30,000, on 1 and 16 GPUs.

In the ratio rows vram is beside itself, with fewer processes: ten times as many should take about ten
times as long, three times as many three times. All is processor time: nobody else's work is in it. The survey
is written by hand, since few machines carry 30,000 processes; the search itself is in the case "scan".
"""

from __future__ import annotations

import gc
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise

from bench.row import Row
from bench.timing import once, program

ONE_SECOND = 1.0
SIZES = (1_000, 10_000, 30_000)
# Half as much again as they are more: caches are smaller than what 30,000 processes need.
MAX_GROWTH = {10_000: 15.0, 30_000: 5.0}
WORDS = {"sharing_uncharged": "sharing a GPU's files", "apart": "sharing nothing"}


def run(turns: int) -> list[Row]:
    turns = min(turns, 5)
    rows = [_command(turns)]
    for gpus in (1, 16):
        for crowd in WORDS:
            rows += _ratios(crowd, gpus, turns)
    return rows


def _command(turns: int) -> Row:
    """The whole command on a snapshot of 10,000 processes that share one of 16 GPUs."""
    from tests.ledger.crowds import sharing_uncharged
    from vram.probes.bundle import write

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "crowd.json")
        write(sharing_uncharged(10_000, 16), path)
        command = [program("vram") or "vram", "why", "--from", path]
        cpu_s = min(_children_s(lambda: once(command)) for _ in range(turns))
    what = f"vram why --from, 10,000 {WORDS['sharing_uncharged']}, 16 GPUs"
    return Row(what, cpu_s, "s", target=ONE_SECOND)


def _ratios(crowd: str, gpus: int, turns: int) -> list[Row]:
    from tests.ledger.crowds import CROWDS

    cpu_s = {}
    for size in SIZES:
        answer = partial(_answer, CROWDS[crowd](size, gpus))
        cpu_s[size] = min(_own_s(answer) for _ in range(turns))
    place = "16 GPUs" if gpus > 1 else "1 GPU"
    return [
        Row(
            f"survey to text, {more:,} {WORDS[crowd]}, {place}",
            cpu_s[more],
            "s",
            f"{fewer:,}:",
            cpu_s[fewer],
            MAX_GROWTH[more],
        )
        for fewer, more in pairwise(SIZES)
    ]


def _answer(survey: object) -> None:
    from io import StringIO

    from rich.console import Console

    from vram.diagnosis.engine import diagnose
    from vram.ledger.build import build_ledger
    from vram.report import text
    from vram.report.layout import RenderOptions

    ledger = build_ledger(survey)  # type: ignore[arg-type]
    console = Console(width=100, file=StringIO(), color_system=None)
    console.print(text.why(ledger, diagnose(ledger), RenderOptions(width=100)), crop=False)


def _own_s(work: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()  # as the command does
    try:
        begin = time.process_time()
        work()
        return time.process_time() - begin
    finally:
        gc.enable()


def _children_s(work: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

"""Jobs and orphans among 10,000 processes: what it costs to know who was launched together by whom.

The same survey with and without what says how its processes were launched. Two thirds of the jobs are
orphans, half of these by what is left of them. All is processor time.
"""

from __future__ import annotations

from functools import partial

from bench.cases.growth import _answer, _own_s
from bench.row import Row

PROCESSES, GPUS = 10_000, 16
# The text names each job, and VR208 one by one: that much is more than the same processes without jobs.
MAX_LEDGER, MAX_TEXT = 1.5, 2.0


def run(turns: int) -> list[Row]:
    from tests.ledger.crowds import apart, in_jobs
    from vram.ledger.build import build_ledger

    turns = min(turns, 5)
    jobs, none = in_jobs(PROCESSES, GPUS), apart(PROCESSES, GPUS)
    rows = []
    for what, work, most in (
        ("ledger", build_ledger, MAX_LEDGER),
        ("survey to text", _answer, MAX_TEXT),
    ):
        ours, theirs = [], []
        for _ in range(turns):  # in turns, so that both meet the same machine
            ours.append(_own_s(partial(work, jobs)))
            theirs.append(_own_s(partial(work, none)))
        rows.append(Row(f"{what}, {PROCESSES:,} in jobs of 8", min(ours), "s", "in none:", min(theirs), most))
    return rows

"""Reserving device addresses costs device memory

Source
------
Folklore: tools that reserve terabytes look alarming.

Method
------
A process reserves 64 GiB of device addresses and puts nothing behind them.

Reading
-------
Addresses are numbers. Only memory that is mapped behind them counts.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import GIB, size

NBYTES = 64 * GIB
TAKES = Takes(NEAR)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    program.reserve(NBYTES)
    taken = bench.look("reserved").used - empty.used
    because = f"{size(max(0, taken))} taken for {size(NBYTES)} of addresses"
    return Answer(taken > NEAR, because, (figure("taken", taken),))

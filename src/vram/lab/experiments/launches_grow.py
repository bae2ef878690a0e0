"""Launching kernels again and again uses up device memory

Source
------
Question 1: launching kernels over and over is said to eat memory up.

Method
------
An empty kernel is launched once; the device is read. It is launched 2000 times more and waited
for.

Reading
-------
False means that launches by themselves keep nothing. What grows is allocated by the program or
its libraries between them.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB, size

LAUNCHES = 2000
TAKES = Takes(64 * MIB)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.load_kernels()
    program.launch_nothing(1)
    first = bench.look("one launch")
    program.launch_nothing(LAUNCHES)
    more = bench.look("many launches").used - first.used
    because = f"{size(max(0, more))} more in use after {LAUNCHES} launches"
    return Answer(more > NEAR, because, (figure("more in use", more),))

"""Memory that a program does not free stays allocated after the program has ended

Source
------
Questions 1, 2 and 4: memory is said to stay allocated beyond its process until somebody frees it.

Method
------
A process allocates 256 MiB, never frees them, and ends as programs do.

Reading
-------
False means that a missing free costs nothing once the process is gone. It still costs while the
process lives.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program, held = bench.holding(NBYTES)
    program.leave()
    left = bench.grown(bench.look("ended"))
    return weighed(left, held, "still used after the program ended")

"""cudaFree(nullptr) flushes what is left of earlier allocations

Source
------
Question 4, which shows the call and rightly doubts that it frees anything.

Method
------
A process allocates 128 MiB and forgets them, then frees the null pointer. The device is read
before and after.

Reading
-------
No call of CUDA flushes memory whose pointer is lost, except for resetting the context: see
reset-not-enough.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program, held = bench.holding(NBYTES)
    program.free_code(0)
    flushed = held - bench.grown(bench.look("freed null"))
    return weighed(flushed, NBYTES, "came back")

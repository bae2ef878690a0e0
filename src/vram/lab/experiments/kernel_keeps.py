"""Memory that a kernel needed stays allocated after the kernel has finished

Source
------
Question 1: what a kernel was given is said to stay allocated when it has run.

Method
------
A kernel of one thread with 3 KiB of local memory is launched and waited for. The driver sets
local memory aside for every thread that could run at once, which is far more.

Reading
-------
True means that a single launch can grow a context for good. It is part of the context and goes
with it.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import GIB, MIB, size

NBYTES = 1 * GIB
TAKES = Takes(NBYTES + 2 * MIB)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.load_kernels()
    out = program.alloc(2 * MIB)
    program.launch_nothing(1)
    empty = bench.look("an empty kernel ran")
    program.launch_deep(out)
    kept = bench.look("a deep kernel ran").used - empty.used
    because = f"{size(max(0, kept))} more in use after it finished"
    return Answer(kept > NEAR, because, (figure("in use after it finished", kept),))

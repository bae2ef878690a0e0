"""An allocation takes as much as was asked for

Source
------
Folklore.

Method
------
A process allocates one byte.

Reading
-------
The driver hands out blocks (2 MiB on current GPUs), shared by small allocations. Thousands of
tiny ones in one process cost little more than their sum; one each in many processes cost a block
each.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB, size

TAKES = Takes(MIB)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    program.alloc(1)
    taken = bench.look("allocated").used - empty.used
    if taken <= 0:
        raise CannotTell("the device showed nothing of it: the context had room left")
    return Answer(taken == 1, f"one byte took {size(taken)}", (figure("taken", taken),))

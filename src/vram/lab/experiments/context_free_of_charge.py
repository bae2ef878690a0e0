"""A CUDA context costs no memory worth mentioning

Source
------
Folklore: a program that allocates nothing is taken to use nothing.

Method
------
A process makes a context and allocates nothing.

Reading
-------
Every process that touches CUDA pays for a context first. Ten idle workers cost ten of them: `vram
why` shows the column.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB, size

TAKES = Takes()
WORTH = 32 * MIB


def measure(bench: Bench) -> Answer:
    bench.actor().context()
    cost = bench.grown(bench.look("context"))
    return Answer(cost < WORTH, f"a context took {size(cost)}", (figure("a context", cost),))

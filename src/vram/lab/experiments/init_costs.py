"""Initialising CUDA costs device memory before there is any context

Source
------
Folklore.

Method
------
A process calls cuInit and makes no context.

Reading
-------
Where it is true the cost is a few MiB, once for all processes, and in no list. A context costs a
hundred times as much: see context-free-of-charge.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import size

TAKES = Takes()


def measure(bench: Bench) -> Answer:
    if bench.before.charges:
        raise CannotTell("others use CUDA already: what it costs once was paid by them")
    bench.actor().init()
    seen = bench.look("cuInit")
    cost = bench.grown(seen)
    return Answer(cost > 0, f"cuInit alone took {size(max(0, cost))}", (figure("cuInit", cost),))

"""A program started from a CUDA program keeps its GPU memory alive

Source
------
Folklore: what is true of a fork is said of every child.

Method
------
A process allocates 256 MiB and starts another program, as subprocess does: fork and exec. The
first is killed, the other runs on.

Reading
-------
The driver opens its files close-on-exec, so another program inherits none of them. Only children
that never exec keep memory: see fork-harmless.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    parent, held = bench.holding(NBYTES)
    parent.spawn()
    parent.kill()
    left = bench.grown(bench.look("parent killed"))
    return weighed(left, held, "still used while the other program runs")

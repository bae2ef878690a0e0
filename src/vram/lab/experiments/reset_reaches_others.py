"""cudaDeviceReset releases what other processes hold

Source
------
Folklore; question 5, which rightly says that no single function flushes the GPU.

Method
------
One process holds 128 MiB. Another one makes a context and resets it.

Reading
-------
A reset ends a context of the process that calls it, and nothing else.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    _, held = bench.holding(NBYTES)
    other = bench.actor()
    other.context()
    other.reset()
    kept = bench.grown(bench.look("reset by the other"))
    return weighed(kept, held, "still held by the first process", claimed=False)

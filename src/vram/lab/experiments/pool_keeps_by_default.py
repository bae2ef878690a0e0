"""A stream-ordered pool keeps freed memory unless it is told otherwise

Source
------
Folklore: cudaMallocAsync is said to cache like PyTorch does.

Method
------
256 MiB are allocated from the default pool with its settings as they are, freed, and the stream
is synchronised.

Reading
-------
False means that the default pool gives everything back at the next synchronisation (its release
threshold is 0). Frameworks raise the threshold: see pool-keeps.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    pointer = program.alloc_async(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free_async(pointer)
    program.synchronize()
    kept = bench.look("freed, synchronised").used - empty.used
    return weighed(kept, NBYTES, "still used after the free and a synchronisation")

"""Memory that is freed into a pool stays used

Source
------
Folklore; question 1 blames pools and caches.

Method
------
A stream-ordered pool is told to keep what it gets (release threshold at its greatest, as
frameworks set it). 256 MiB are allocated from it, freed and synchronised, then the pool is
trimmed.

Reading
-------
From outside, a pool's spare memory looks like any other. The process alone can return it:
cuMemPoolTrimTo, empty_cache() and their like, or `vram trim` from outside.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.pool_keeps()
    empty = bench.look("context")
    pointer = program.alloc_async(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free_async(pointer)
    program.synchronize()
    kept = bench.look("freed").used - empty.used
    program.pool_trim()
    left = bench.look("trimmed").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the free")
    because = f"{answer.because}, {size(max(0, left))} after the trim"
    return Answer(answer.holds, because, (figure("after the free", kept), figure("after the trim", left)))

"""cudaFreeAsync gives memory back at once

Source
------
Folklore; question 1 says that the device may carry out a release later.

Method
------
256 MiB are allocated from the default pool and freed in the stream's order. The device is read
without any synchronisation, and again after one.

Reading
-------
The free is a wish in a queue: until somebody synchronises, the pool keeps the memory.
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
    empty = bench.look("context")
    pointer = program.alloc_async(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free_async(pointer)
    kept = bench.look("freed").used - empty.used
    program.synchronize()
    left = bench.look("synchronised").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the free", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after a synchronisation"
    return Answer(answer.holds, because, (figure("after the free", kept), figure("synchronised", left)))

"""A pool hands the old bytes of one owner to the next

Source
------
Question 5 (zero before you free), applied to where it matters.

Method
------
64 MiB from a stream-ordered pool that keeps what it gets are filled with a pattern and freed, and
as much is allocated again. Bytes of the pattern are counted.

Reading
-------
True means that between libraries, or between users of one server process, secrets must be
overwritten before they are freed into a pool. `vram.Buffer` with zero_on_free does.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 64 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.pool_keeps()
    pointer = program.alloc_async(NBYTES)
    program.fill(pointer, 0xA5, NBYTES)
    program.free_async(pointer)
    program.synchronize()
    seen = program.count_byte(program.alloc_async(NBYTES), 0xA5, NBYTES)
    bench.look("read")
    because = f"{seen} of {NBYTES} old bytes were handed over"
    return Answer(seen > 0, because, (figure("old bytes", seen, "count"),))

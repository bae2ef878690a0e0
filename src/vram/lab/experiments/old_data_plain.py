"""A fresh allocation shows the old bytes of one that was freed

Source
------
Question 5, which zeroes sensitive data before the free.

Method
------
A process fills 64 MiB with a pattern, reads it back to be sure, frees it, allocates as much again
and counts bytes that are not zero.

Reading
-------
False says that none of these bytes were seen on this GPU, driver and mode. It is no promise that
memory is wiped. Pools are another matter: see old-data-pool.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 64 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    pointer = program.alloc(NBYTES)
    program.fill(pointer, 0xA5, NBYTES)
    if program.count_byte(pointer, 0xA5, NBYTES) != NBYTES:
        raise CannotTell("the pattern could not be read back even before the free")
    program.free(pointer)
    seen = program.count_nonzero(program.alloc(NBYTES), NBYTES)
    bench.look("read")
    because = f"{seen} of {NBYTES} bytes were not zero"
    return Answer(seen > 0, because, (figure("bytes that were not zero", seen, "count"),))

"""A process can read what another one left in GPU memory

Source
------
Question 2: data are said to outlast the process that wrote them; question 5 fears for sensitive
ones.

Method
------
A process fills 128 MiB with a pattern and is killed without freeing. The next one allocates 128
MiB and counts bytes that are not zero.

Reading
-------
False says that none of these bytes were seen here. The second process need not get the same
memory: on a large, idle GPU this shows less than on a full one.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(2 * NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    first = bench.actor()
    first.context()
    pointer = first.alloc(NBYTES)
    first.fill(pointer, 0xA5, NBYTES)
    if first.count_byte(pointer, 0xA5, NBYTES) != NBYTES:
        raise CannotTell("the pattern could not be read back even by its writer")
    first.kill()
    second = bench.actor()
    second.context()
    seen = second.count_nonzero(second.alloc(NBYTES), NBYTES)
    bench.look("read")
    because = f"{seen} of {NBYTES} bytes were not zero"
    return Answer(seen > 0, because, (figure("bytes that were not zero", seen, "count"),))

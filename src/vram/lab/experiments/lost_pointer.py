"""The driver collects memory whose pointer was lost

Source
------
Question 2, in which the driver pages and collects garbage; question 5 warns that losing the
pointer frees nothing.

Method
------
A process allocates 128 MiB, forgets the pointer and collects garbage. It synchronises, and
allocates and frees something else, so that the driver has occasion to tidy up.

Reading
-------
False means that device memory has no garbage collector: what has no owner stays until the context
or the process goes.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(2 * NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    program.lose(NBYTES)
    bench.must_show(bench.look("lost"), NBYTES, since=empty)
    program.synchronize()
    program.free(program.alloc(NBYTES))
    kept = bench.look("occasion to tidy up").used - empty.used
    return weighed(kept, NBYTES, "still used although nobody knows its pointer", claimed=False)

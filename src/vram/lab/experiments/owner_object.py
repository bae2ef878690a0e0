"""An object that frees in its destructor gives a thread's memory back

Source
------
Question 3, which says both: garbage collection alone tells the driver nothing, and a `__del__`
that frees helps.

Method
------
Four threads of one process allocate 64 MiB each through an object whose destructor frees, and
end.

Reading
-------
True means that the garbage collector can free device memory very well, through an owner.
`vram.Buffer` is one.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

THREADS = 4
NBYTES = 64 * MIB
TAKES = Takes(THREADS * NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    witness = program.alloc(NBYTES)
    bench.must_show(bench.look("one allocated"), NBYTES, since=empty)
    program.free(witness)
    for _ in range(THREADS):
        program.thread_own(NBYTES)
    kept = bench.look("threads ended").used - empty.used
    return weighed(kept, THREADS * NBYTES, "still used after the threads ended", claimed=False)

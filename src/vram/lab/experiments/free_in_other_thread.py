"""Only the thread that allocated memory can free it

Source
------
Folklore.

Method
------
A thread allocates 128 MiB and ends. Another thread of the same process frees them.

Reading
-------
A pointer belongs to its context, and every thread that makes the context current may free it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    pointer = program.thread_alloc(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.thread_free(pointer)
    kept = bench.look("freed by another").used - empty.used
    return weighed(kept, NBYTES, "still used after another thread freed it")

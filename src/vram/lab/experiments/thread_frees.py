"""A free inside the thread gives its memory back before the thread ends

Source
------
Question 3, of its explicit release.

Method
------
A process allocates 128 MiB and frees them, to see that they show; then a thread of it does both
and ends.

Reading
-------
True, and more than is needed: any thread may free it (see free-in-other-thread), and an owner
object does so by itself (see owner-object).
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
    witness = program.alloc(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free(witness)
    program.thread_use(NBYTES)
    kept = bench.look("thread ended").used - empty.used
    return weighed(kept, NBYTES, "still used after the thread", claimed=False)

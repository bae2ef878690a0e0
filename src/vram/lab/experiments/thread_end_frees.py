"""The end of a thread frees what the thread allocated

Source
------
Question 3, which rightly says that it does not.

Method
------
Four threads of one process allocate 64 MiB each through raw pointers, and end.

Reading
-------
Device memory belongs to the process. Without an owner object, nobody is left who could free it:
see owner-object.
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
    for _ in range(THREADS):
        program.thread_alloc(NBYTES)
    kept = bench.look("threads ended").used - empty.used
    return weighed(kept, THREADS * NBYTES, f"still used after {THREADS} threads ended", claimed=False)

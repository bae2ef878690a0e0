"""Freed memory stays unavailable to other processes until the driver reclaims it

Source
------
Question 1: freed memory is said to be reserved, and lost to other processes, until the driver
chooses to reclaim it.

Method
------
Two processes have a context each. One allocates 256 MiB and frees them; the other asks the driver
before, between and after how much is free for it.

Reading
-------
False means that what one process frees, another can have at once.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 256 * MIB
TAKES = Takes(NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    program, other = bench.actor(), bench.actor()
    program.context()
    other.context()
    bench.look("contexts")
    before = other.free_bytes()
    pointer = program.alloc(NBYTES)
    taken = before - other.free_bytes()
    if taken < NBYTES:
        raise CannotTell(f"the other process saw {size(taken)} of {size(NBYTES)} taken")
    program.free(pointer)
    withheld = before - other.free_bytes()
    return weighed(withheld, NBYTES, "not free for the other process after the free")

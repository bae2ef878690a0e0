"""Freeing the same pointer twice breaks the process

Source
------
Folklore, from the host's malloc.

Method
------
A process frees 2 MiB twice, then allocates and writes again.

Reading
-------
The driver knows its pointers: it refuses the second free (1, invalid value) and the process goes
on. Where the address was given out again meanwhile, the second free takes somebody else's memory:
that is the real danger.
"""

from __future__ import annotations

from vram.lab.actor import Ended
from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 2 * MIB
TAKES = Takes(2 * NBYTES)
OK = 0


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    pointer = program.alloc(NBYTES)
    program.free(pointer)
    code = program.free_code(pointer)
    try:
        again = program.alloc(NBYTES)
        program.fill(again, 0xA5, NBYTES)
    except Ended:
        return Answer(True, "the process died of it")
    because = f"the second free answered {code}, and the process went on"
    return Answer(False, because, (figure("answer", code, "code"),))

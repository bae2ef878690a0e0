"""numba.cuda.close() gives all of a process's GPU memory back

Source
------
Folklore.

Method
------
A device array of 128 MiB is made and kept, and cuda.close() is called. The process lives on while
the device is read.

Reading
-------
It destroys the contexts, and with them everything that was allocated in them: arrays that are
kept are dead from then on.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)
DEADLINE_S = 60.0

MAKE = f"from numba import cuda; x = cuda.device_array({NBYTES}, dtype='u1')"


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.python(MAKE)
    held = bench.look("array")
    bench.must_show(held, NBYTES)
    program.python("cuda.close()")
    left = bench.grown(bench.look("closed"))
    return weighed(left, bench.grown(held), "still used after close()", claimed=False)

"""Numba gives an array's memory back as soon as it is deleted

Source
------
Folklore; question 3, of libraries that manage memory for Python.

Method
------
A device array of 128 MiB is made and deleted. The device is read, then Numba is told to carry out
its pending deallocations.

Reading
-------
Numba collects deallocations and carries them out some at a time, because a free waits for the
device. Until then the memory stays used.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)
DEADLINE_S = 60.0

START = "import gc; from numba import cuda; context = cuda.current_context()"
MAKE = f"x = cuda.device_array({NBYTES}, dtype='u1')"


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.python(START)
    empty = bench.look("context")
    program.python(MAKE)
    bench.must_show(bench.look("array"), NBYTES, since=empty)
    program.python("del x; gc.collect()")
    kept = bench.look("deleted").used - empty.used
    program.python("context.memory_manager.deallocations.clear()")
    left = bench.look("pending frees done").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the array was deleted", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after its pending deallocations"
    return Answer(answer.holds, because, (figure("deleted", kept), figure("pending frees done", left)))

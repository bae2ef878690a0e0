"""CuPy gives an array's memory back as soon as it is deleted

Source
------
Folklore; question 3 names CuPy.

Method
------
An array of 256 MiB is made and deleted. The device is read, then the pool is told to free all
blocks.

Reading
-------
CuPy keeps a pool as PyTorch does. get_default_memory_pool().free_all_blocks() returns what no
array uses.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 256 * MIB
TAKES = Takes(NBYTES + 256 * MIB)
DEADLINE_S = 60.0

START = "import gc, cupy; first = cupy.empty(1)"
FREE = "cupy.get_default_memory_pool().free_all_blocks()"


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.python(START)
    empty = bench.look("first array")
    program.python(f"x = cupy.empty({NBYTES}, dtype=cupy.uint8)")
    bench.must_show(bench.look("array"), NBYTES, since=empty)
    program.python("del x; gc.collect()")
    kept = bench.look("deleted").used - empty.used
    program.python(FREE)
    left = bench.look("blocks freed").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the array was deleted", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after free_all_blocks()"
    return Answer(answer.holds, because, (figure("deleted", kept), figure("blocks freed", left)))

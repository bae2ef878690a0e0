"""cudaFree keeps memory for reuse instead of giving it back

Source
------
Question 1: the driver is said to keep what was freed, for allocations to come, and tools to show it.

Method
------
A process allocates 256 MiB with cuMemAlloc and frees them. What the device has in use is compared
with what it had before the allocation.

Reading
-------
Plain allocations go back at once. What keeps memory is a pool on top of them: stream-ordered
memory, PyTorch, CuPy. See pool-keeps.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    pointer = program.alloc(NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free(pointer)
    kept = bench.look("freed").used - empty.used
    return weighed(kept, NBYTES, "still used after the free")

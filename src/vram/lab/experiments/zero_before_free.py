"""Memory that is zeroed before it is freed shows the next owner nothing

Source
------
Question 5: overwriting is said to give the next owner of pooled memory a known beginning.

Method
------
64 MiB from a stream-ordered pool that keeps what it gets are filled with a pattern, which is read
back. They are zeroed, freed, and as much is allocated again. Bytes that are not zero are counted.

Reading
-------
True where the pool hands the same memory over, which old-data-pool shows. It says nothing of
copies elsewhere: registers, workspaces, host memory.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 64 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.pool_keeps()
    pointer = program.alloc_async(NBYTES)
    program.fill(pointer, 0xA5, NBYTES)
    if program.count_byte(pointer, 0xA5, NBYTES) != NBYTES:
        raise CannotTell("the pattern could not be read back even before the free")
    program.fill(pointer, 0, NBYTES)
    program.free_async(pointer)
    program.synchronize()
    seen = program.count_nonzero(program.alloc_async(NBYTES), NBYTES)
    bench.look("read")
    because = f"{seen} of {NBYTES} bytes were not zero"
    return Answer(seen == 0, because, (figure("bytes that were not zero", seen, "count"),))

"""Plain device memory can be larger than the GPU: the driver pages it out

Source
------
Question 2, in which the driver pages memory out to make room.

Method
------
A process asks cuMemAlloc for more than the GPU has. Nothing is written, and what would be given
is given back at once.

Reading
-------
False on Linux: only managed memory may exceed the device. On Windows and WSL2 the driver may fall
back to the host's memory, so there it is not tried.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import GIB, size

TAKES = Takes()
OK, OUT_OF_MEMORY = 0, 2


def measure(bench: Bench) -> Answer:
    if bench.on_wsl:
        raise CannotTell("under WSL2 the driver may take the host's memory instead")
    program = bench.actor()
    program.context()
    total = bench.look("context").memory.total
    code = program.alloc_code(total + GIB)
    bench.look("asked")
    if code not in (OK, OUT_OF_MEMORY):
        raise CannotTell(f"cuMemAlloc answered {code}")
    because = f"asked for {size(total + GIB)} on a GPU of {size(total)}, cuMemAlloc answered {code}"
    return Answer(code == OK, because, (figure("answer", code, "code"),))

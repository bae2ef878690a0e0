"""A device pointer works in every process on the GPU

Source
------
Question 2: allocations are said to lie in one global memory that every kernel on the GPU reaches,
from whatever process.

Method
------
A process allocates 2 MiB. Another one, with a context of its own, asks the driver to copy from
that address.

Reading
-------
Each process has a device address space of its own. Memory is shared by IPC handles and exported
descriptors, not by addresses. The two processes may by chance have memory at the same address:
the second one allocates nothing here.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 2 * MIB
TAKES = Takes(NBYTES, contexts=2)
OK = 0


def measure(bench: Bench) -> Answer:
    owner, stranger = bench.actor(), bench.actor()
    owner.context()
    pointer = owner.alloc(NBYTES)
    if owner.read_code(pointer, 4096) != OK:
        raise CannotTell("not even the owner can read its memory")
    stranger.context()
    code = stranger.read_code(pointer, 4096)
    words = "could read it" if code == OK else "was refused"
    because = f"another process {words}: cuMemcpyDtoH there answered {code}"
    return Answer(code == OK, because, (figure("answer", code, "code"),))

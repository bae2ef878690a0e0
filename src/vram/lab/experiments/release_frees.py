"""cuMemRelease gives memory back at once

Source
------
Folklore of virtual memory management: expandable segments and growable vectors.

Method
------
A process creates 128 MiB of physical memory, maps it, and releases the handle while it is mapped.
Then it unmaps it.

Reading
-------
The mapping is a reference of its own: memory goes with the last of handle, mapping and exported
descriptor.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)
OK = 0


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    handle, address = program.create(NBYTES), program.reserve(NBYTES)
    code = program.map(address, NBYTES, handle)
    if code != OK:
        raise CannotTell(f"cuMemMap answered {code}")
    bench.must_show(bench.look("mapped"), NBYTES, since=empty)
    program.release(handle)
    kept = bench.look("released").used - empty.used
    program.unmap(address, NBYTES)
    left = bench.look("unmapped").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the release", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after the unmap"
    return Answer(answer.holds, because, (figure("after the release", kept), figure("after the unmap", left)))

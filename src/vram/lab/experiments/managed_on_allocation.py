"""Managed memory takes device memory as soon as it is allocated

Source
------
Folklore.

Method
------
A process allocates 256 MiB of managed memory; the device is read. Then the device writes to them,
and it is read again.

Reading
-------
Managed memory goes where it is touched. Until the device touches it, it costs the device nothing.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    pointer = program.alloc_managed(NBYTES)
    untouched = bench.look("allocated").used - empty.used
    program.fill(pointer, 0xA5, NBYTES)
    touched = bench.look("written by the device").used - empty.used
    answer = weighed(untouched, NBYTES, "used when it was allocated")
    because = f"{answer.because}, {size(max(0, touched))} when the device had written to it"
    return Answer(answer.holds, because, (figure("allocated", untouched), figure("written", touched)))

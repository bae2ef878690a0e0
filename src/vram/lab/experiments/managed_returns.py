"""Managed memory leaves the device by itself when the host uses it again

Source
------
Question 1: the driver is said to move managed data to and fro as it is needed.

Method
------
256 MiB of managed memory are written by the device, then all of them by the host.

Reading
-------
False means that the data move and the device's pages stay allocated: they come back with the
free.
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
    pointer = program.alloc_managed(NBYTES)
    program.fill(pointer, 0xA5, NBYTES)
    bench.must_show(bench.look("written by the device"), NBYTES, since=empty)
    program.host_fill(pointer, 0x5A, NBYTES)
    kept = bench.look("written by the host").used - empty.used
    return weighed(kept, NBYTES, "still used after the host wrote to all of it", claimed=False)

"""Pinned host memory uses up device memory

Source
------
Question 4: pinned memory that is badly looked after is said to help exhaust the device.

Method
------
A process pins 256 MiB of host memory.

Reading
-------
False means that pinned memory is the host's alone. It can exhaust the host, and BAR1 is another
matter.
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
    program.pin(NBYTES)
    taken = bench.look("pinned").used - empty.used
    return weighed(taken, NBYTES, "of device memory taken")

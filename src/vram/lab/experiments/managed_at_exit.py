"""Managed memory is released by itself when the program ends

Source
------
Question 1: managed memory is said to go by itself with its program; question 2 says that its life
is decoupled from any process.

Method
------
A process allocates 256 MiB of managed memory, has the device write to them so that they lie
there, and ends without freeing.

Reading
-------
True, and nothing special: plain memory is released in the same way. See exit-without-free.
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
    pointer = program.alloc_managed(NBYTES)
    program.fill(pointer, 0xA5, NBYTES)
    bench.must_show(bench.look("written by the device"), NBYTES)
    program.leave()
    left = bench.grown(bench.look("ended"))
    return weighed(left, NBYTES, "still used after the program ended", claimed=False)

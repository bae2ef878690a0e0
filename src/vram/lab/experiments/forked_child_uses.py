"""A forked child can go on using its parent's GPU memory

Source
------
Folklore: fork shares everything else.

Method
------
A process makes a context and forks. The child asks the driver for 2 MiB, and its answer is read.

Reading
-------
CUDA does not work in a process that was forked from one that used it (the driver answers 3, not
initialised). The child keeps the memory alive and cannot use it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

TAKES = Takes(2 * MIB)
OK = 0


def measure(bench: Bench) -> Answer:
    parent = bench.actor()
    parent.context()
    child = parent.fork()
    code = parent.tell_child(child, "alloc_code", 2 * MIB)
    words = "it was given memory" if code == OK else "its call was refused"
    return Answer(
        code == OK, f"{words}: cuMemAlloc in the child answered {code}", (figure("answer", code, "code"),)
    )

"""A fork is harmless: the memory goes when the process that allocated it ends

Source
------
Folklore: data loaders and servers fork after using CUDA.

Method
------
A process allocates 256 MiB and forks. The child only sleeps. The parent is killed, and the device
is read.

Reading
-------
A fork copies the open device files, and these hold the memory. Start workers before CUDA is used,
or with the spawn method.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    parent, held = bench.holding(NBYTES)
    parent.fork()
    parent.kill()
    left = bench.grown(bench.look("parent killed"))
    return weighed(left, held, "still used while the forked child sleeps", claimed=False)

"""A forked child that closes the device files gives its parent's memory back

Source
------
Folklore; what daemons do that close every descriptor after a fork.

Method
------
A process allocates 256 MiB and forks. The child closes the device files that it inherited and
keeps their mappings. The parent is killed.

Reading
-------
Memory belongs to the open files. Mappings of device files alone hold nothing.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    parent, held = bench.holding(NBYTES)
    child = parent.fork()
    closed = parent.tell_child(child, "close_device_files")
    parent.kill()
    left = bench.grown(bench.look("parent killed"))
    return weighed(left, held, f"still used after the child closed {closed} files", claimed=False)

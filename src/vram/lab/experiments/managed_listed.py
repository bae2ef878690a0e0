"""The process list charges a process with its managed memory

Source
------
Folklore.

Method
------
256 MiB of managed memory are written by the device. What the device has in use more is compared
with what the list charges more.

Reading
-------
False means that this memory is used, and in no list: `vram why` finds its owner through its
mappings.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    if program.pid not in empty.charges:
        raise CannotTell("the driver's list does not name processes by the pids that we know")
    program.fill(program.alloc_managed(NBYTES), 0xA5, NBYTES)
    seen = bench.look("written by the device")
    bench.must_show(seen, NBYTES, since=empty)
    charged = seen.charges.get(program.pid, 0) - empty.charges[program.pid]
    return weighed(charged, NBYTES, "more in the list")

"""A stopped process (Ctrl-Z) keeps all of its GPU memory

Source
------
Folklore: a job in the background is often taken for gone.

Method
------
A process allocates 256 MiB and is stopped by SIGSTOP. The device is read while the kernel shows
it in state T.

Reading
-------
Stopping a process stops its threads and nothing else. `kill -CONT` lets it go on, `vram kill`
ends it, `vram park` needs it running.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    holder = bench.actor()
    holder.context()
    empty = bench.look("context")
    holder.alloc(NBYTES)
    held = bench.look("allocated")
    bench.must_show(held, NBYTES, since=empty)
    holder.stop()
    if bench.state_of(holder.pid) != "T":
        raise CannotTell("the kernel does not show the process as stopped")
    kept = bench.look("stopped").used - empty.used
    return weighed(kept, NBYTES, "still used while it is stopped")

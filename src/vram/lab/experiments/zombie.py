"""A zombie process holds GPU memory until it is reaped

Source
------
Folklore.

Method
------
A process allocates 256 MiB and is killed. Nobody reaps it: the kernel shows it in state Z while
the device is read.

Reading
-------
A zombie is an entry in a table: its files were closed when it died. What looks like a zombie's
memory is kept by a living process.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    holder, held = bench.holding(NBYTES)
    holder.kill()
    if bench.state_of(holder.pid) != "Z":
        raise CannotTell("the kernel does not show the killed process as a zombie")
    left = bench.grown(bench.look("zombie"))
    return weighed(left, held, "used while it is a zombie")

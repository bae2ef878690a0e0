"""The sizes in the process list sum up to what is used

Source
------
Folklore.

Method
------
A process makes a context and allocates 64 MiB. What the device has in use more is compared with
what the list charges.

Reading
-------
False means that some of every context is in no list. `vram why` gives it a line of its own.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import KIB, MIB, size

NBYTES = 64 * MIB
TAKES = Takes(NBYTES)
EXACT = 64 * KIB


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    program.alloc(NBYTES)
    seen = bench.look("allocated")
    listed = seen.charges.get(program.pid)
    if listed is None:
        raise CannotTell("the driver's list does not name processes by the pids that we know")
    used = bench.grown(seen)
    because = f"{size(used)} more are used, {size(listed)} are listed"
    return Answer(abs(used - listed) <= EXACT, because, (figure("used", used), figure("listed", listed)))

"""The driver's process list names living processes only

Source
------
Folklore: a pid that nvidia-smi lists and ps does not know is taken for a driver bug.

Method
------
A process with a context and 64 MiB forks, and is killed. Its child sleeps. The process list is
searched for the dead pid.

Reading
-------
The list names whoever made the context, also after its end, as long as somebody keeps its files.
`kill` on that pid can do nothing: end the child.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 64 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    parent = bench.actor()
    parent.context()
    parent.alloc(NBYTES)
    if parent.pid not in bench.look("allocated").charges:
        raise CannotTell("the driver's list does not name processes by the pids that we know")
    child = parent.fork()
    parent.kill()
    charges = bench.look("parent killed").charges
    listed = charges.get(parent.pid)
    if listed is None:
        return Answer(
            True, f"the dead pid is not listed, its child is{'' if child.pid in charges else ' not'}"
        )
    because = f"the dead pid is listed with {size(listed)}, its sleeping child is not"
    return Answer(False, because, (figure("charged to the dead pid", listed),))

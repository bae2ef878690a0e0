"""What is used on an idle GPU includes what the driver reserves for itself

Source
------
Folklore: nvidia-smi and older tools show some hundred MiB on a GPU that nobody uses.

Method
------
Both versions of the driver's call are read: the older one, and the newer one, which tells what is
reserved.

Reading
-------
True means that tools on the older call show the reserved part as used. It belongs to no process
and cannot be freed.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, CannotTell, Takes, figure, mostly
from vram.lab.bench import Bench
from vram.units import size

TAKES = Takes(contexts=0)


def measure(bench: Bench) -> Answer:
    memory = bench.look("now").memory
    if memory.reserved is None or memory.v1_used is None:
        raise CannotTell("this driver does not tell what it reserves")
    more, reserved = memory.v1_used - memory.used, memory.reserved
    because = f"the older call says {size(more)} more than the newer one; {size(reserved)} are reserved"
    holds = mostly(more, reserved) if reserved > NEAR else None
    return Answer(holds, because, (figure("more in the older call", more), figure("reserved", reserved)))

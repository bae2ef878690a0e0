"""A crash leaves GPU memory behind

Source
------
Folklore.

Method
------
A process allocates 256 MiB and aborts, as a failed assertion or a wild pointer would make it do.
It writes no core file.

Reading
-------
The kernel closes the files of a crashed process as it does for any other. A crash handler or a
large core file can keep it alive for a while: until it is gone, it holds what it held.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program, held = bench.holding(NBYTES)
    program.crash()
    left = bench.grown(bench.look("crashed"))
    return weighed(left, held, "still used after the crash")

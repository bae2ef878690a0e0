"""cudaDeviceReset is not enough to release everything

Source
------
Question 4: resetting the context is said not to suffice every time.

Method
------
A process allocates 256 MiB, forgets them, and resets its primary context, which is what
cudaDeviceReset does. It lives on while the device is read.

Reading
-------
False means that a reset returns all that this very process holds, its context included, but for
the few MiB of a CUDA that is initialised: see init-costs. It cannot return what another process
holds: see reset-reaches-others.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program, held = bench.holding(NBYTES)
    program.reset()
    left = bench.grown(bench.look("reset"))
    return weighed(left, held, "still used after the reset")

"""Memory that a dead process left behind needs a reset of the GPU or its driver

Source
------
Question 4, which calls a reset of the driver the last resort; and folklore (nvidia-smi --gpu-reset,
reboot).

Method
------
The two ways in which memory outlives its maker are set up at once: a forked child inherits 128
MiB, and a process that never used CUDA holds an exported handle to 128 MiB more. The makers are
killed, the memory is seen to stay, then the two keepers are ended. Nothing is reset.

Reading
-------
False means that ending the process that keeps the memory gives back all of it. `vram why` names
the keeper; `vram kill` ends it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(2 * NBYTES, contexts=2)


def measure(bench: Bench) -> Answer:
    parent, allocator = bench.actor(), bench.actor()
    keeper = allocator.fork()
    parent.context()
    parent.alloc(NBYTES)
    child = parent.fork()
    allocator.context()
    allocator.hand_over(keeper, allocator.export(allocator.create(NBYTES)))
    parent.kill()
    allocator.kill()
    bench.must_show(bench.look("makers killed"), 2 * NBYTES)
    child.kill()
    keeper.kill()
    left = bench.grown(bench.look("keepers ended"))
    return weighed(left, 2 * NBYTES, "still used after the keepers ended, without a reset")

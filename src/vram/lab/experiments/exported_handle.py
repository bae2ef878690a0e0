"""GPU memory can be in use while no process at all uses CUDA

Source
------
Questions 2 and 4, which ask about memory in use that belongs to no process.

Method
------
A process exports a 256 MiB allocation as a file descriptor to one that never loads CUDA, and is
killed. The device is read, and so is the process list.

Reading
-------
True, and a process it is that keeps the memory: it holds a descriptor of /dev/nvidiactl, which no
list shows. `vram why` finds it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    allocator = bench.actor()
    keeper = allocator.fork()
    allocator.context()
    allocator.hand_over(keeper, allocator.export(allocator.create(NBYTES)))
    allocator.kill()
    seen = bench.look("allocator killed")
    listed = {allocator.pid, keeper.pid} & set(seen.charges)
    answer = weighed(
        bench.grown(seen), NBYTES, f"still used, {'listed' if listed else 'and no list names anybody'}"
    )
    return Answer(False if listed else answer.holds, answer.because, answer.figures)

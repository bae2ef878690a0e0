"""A dma-buf keeps GPU memory that no process list names

Source
------
Folklore of RDMA and video: buffers shared with other devices.

Method
------
A process makes a dma-buf of 256 MiB, hands its descriptor to one that never loads CUDA, and is
killed.

Reading
-------
The descriptor's fdinfo tells its size on kernels that show it. `vram why` names whoever holds it.
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
    allocator.hand_over(keeper, allocator.dmabuf(allocator.alloc(NBYTES), NBYTES))
    allocator.kill()
    seen = bench.look("allocator killed")
    listed = {allocator.pid, keeper.pid} & set(seen.charges)
    answer = weighed(
        bench.grown(seen), NBYTES, f"still used, {'listed' if listed else 'and no list names anybody'}"
    )
    return Answer(False if listed else answer.holds, answer.because, answer.figures)

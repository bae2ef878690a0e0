"""PyTorch gives a tensor's memory back as soon as it is deleted

Source
------
Folklore; question 1 asks why memory is not free after the work is done.

Method
------
A tensor of 256 MiB is made and deleted, and garbage is collected. The device is read before and
after.

Reading
-------
PyTorch's allocator keeps what tensors give back, for the next ones. torch.cuda.empty_cache()
returns it to the device, from outside `vram trim` does.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES + 256 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

START = "import gc, torch; first = torch.empty(1, device='cuda')"
MAKE = f"x = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda')"


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    program.python(START)
    empty = bench.look("first tensor")
    program.python(MAKE)
    bench.must_show(bench.look("tensor"), NBYTES, since=empty)
    program.python("del x; gc.collect()")
    kept = bench.look("deleted").used - empty.used
    return weighed(kept, NBYTES, "still used after the tensor was deleted", claimed=False)

"""A new PyTorch tensor can show the bytes of a deleted one

Source
------
Question 5 (zero before you free), applied to PyTorch's cache.

Method
------
A tensor of 64 MiB is filled with a pattern and deleted; torch.empty makes another one of that
size, and bytes of the pattern are counted.

Reading
-------
True means that the cache hands memory over as it is. Use torch.zeros, or overwrite what is secret
before it goes.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 64 * MIB
TAKES = Takes(3 * NBYTES + 512 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

WORK = f"""
import torch
x = torch.full(({NBYTES},), 0xA5, dtype=torch.uint8, device='cuda')
torch.cuda.synchronize()
del x
y = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda').cpu()
answer = int((y == 0xA5).sum())
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    seen = int(str(program.python(WORK)))
    bench.look("read")
    because = f"{seen} of {NBYTES} old bytes were handed over"
    return Answer(seen > 0, because, (figure("old bytes", seen, "count"),))

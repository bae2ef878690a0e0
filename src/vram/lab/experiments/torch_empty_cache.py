"""torch.cuda.empty_cache() frees all of a process's GPU memory

Source
------
Folklore.

Method
------
Two tensors of 128 MiB are made, one is deleted, and empty_cache() is called. What is left is
compared with what was in use before the process began.

Reading
-------
It returns what no tensor uses any more. Live tensors stay, and so do the context and the
workspaces of libraries: see torch-workspaces.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, Takes, figure, of
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(2 * NBYTES + 256 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

MAKE = f"""
import gc, torch
kept = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda')
gone = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda')
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    program.python(MAKE)
    held = bench.look("two tensors")
    bench.must_show(held, 2 * NBYTES)
    program.python("del gone; gc.collect(); torch.cuda.empty_cache()")
    left = bench.grown(bench.look("emptied"))
    back = bench.grown(held) - left
    because = f"{of(left, bench.grown(held))} still used; {size(back)} came back"
    return Answer(left <= NEAR, because, (figure("still used", left), figure("came back", back)))

"""Deleting the last name of a tensor frees it, whatever refers to it

Source
------
Folklore; question 3 doubts that garbage collection helps.

Method
------
An object that refers to itself holds a tensor of 128 MiB. Its name is deleted and the cache
emptied; the device is read. Then garbage is collected and the cache emptied again.

Reading
-------
Reference counting does not see cycles; the collector does, some time later. `vram.flush()`
collects first.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(NBYTES + 256 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

START = """
import gc, torch
gc.disable()
class Model: pass
first = torch.empty(1, device='cuda')
"""
MAKE = f"""
model = Model()
model.itself = model
model.weights = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda')
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    program.python(START)
    empty = bench.look("first tensor")
    program.python(MAKE)
    bench.must_show(bench.look("model"), NBYTES, since=empty)
    program.python("del model; torch.cuda.empty_cache()")
    kept = bench.look("deleted").used - empty.used
    program.python("gc.collect(); torch.cuda.empty_cache()")
    left = bench.look("collected").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the delete", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after a collection"
    return Answer(answer.holds, because, (figure("deleted", kept), figure("collected", left)))

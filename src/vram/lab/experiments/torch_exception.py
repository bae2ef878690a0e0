"""After a failed step, empty_cache() gives the step's memory back

Source
------
Question 4, of exceptions that skip a free; what notebooks do after every error.

Method
------
A function fails with a tensor of 128 MiB in its frame, and the exception is kept as an
interactive interpreter keeps it. Garbage is collected, the cache emptied, and the device read.

Reading
-------
The kept exception holds the frame, and the frame the tensor: neither a collection nor
empty_cache() can help until it is dropped. `vram.flush()` drops it.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(NBYTES + 256 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

START = f"""
import gc, sys, torch
first = torch.empty(1, device='cuda')
def step():
    x = torch.empty({NBYTES}, dtype=torch.uint8, device='cuda')
    raise ValueError('the step failed')
"""
FAIL = """
try:
    step()
except ValueError as error:
    sys.last_value = error
gc.collect()
torch.cuda.empty_cache()
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    program.python(START)
    empty = bench.look("first tensor")
    program.python(FAIL)
    kept = bench.look("failed, emptied").used - empty.used
    program.python("sys.last_value = None; gc.collect(); torch.cuda.empty_cache()")
    left = bench.look("dropped").used - empty.used
    answer = weighed(kept, NBYTES, "still used after empty_cache()", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after the exception was dropped"
    return Answer(answer.holds, because, (figure("emptied", kept), figure("dropped", left)))

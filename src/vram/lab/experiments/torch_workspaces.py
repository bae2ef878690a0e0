"""Libraries keep GPU memory that the program never allocated

Source
------
Question 4: libraries of others are said to leak easily.

Method
------
A matrix product of PyTorch runs once; all tensors are deleted and the cache emptied. What is in
use is compared with what was before the product.

Reading
-------
cuBLAS keeps a workspace for each of its handles, and loaded kernels stay. It is no leak: it does
not grow with the work. `vram.flush()` clears the workspaces.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB, size

TAKES = Takes(768 * MIB)
DEADLINE_S = 60.0
LIBRARY = "torch"

START = "import gc, torch; first = torch.empty(1, device='cuda'); torch.cuda.empty_cache()"
WORK = """
a = torch.ones(1024, 1024, device='cuda')
b = a @ a
torch.cuda.synchronize()
del a, b
gc.collect()
torch.cuda.empty_cache()
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor(LIBRARY)
    program.python(START)
    empty = bench.look("first tensor")
    program.python(WORK)
    kept = bench.look("one product, all deleted").used - empty.used
    because = f"{size(max(0, kept))} more in use than before the product"
    return Answer(kept > NEAR, because, (figure("more in use", kept),))

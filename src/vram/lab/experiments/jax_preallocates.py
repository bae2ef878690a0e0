"""JAX takes a fixed share of the GPU at its first array, however small that is

Source
------
Folklore.

Method
------
The share is set to 1.5 GiB (XLA_PYTHON_CLIENT_MEM_FRACTION) so that the experiment takes no more;
by itself it is three quarters of the GPU. Then an array of one number is made.

Reading
-------
True means that what tools show for a JAX process says nothing about what it needs.
XLA_PYTHON_CLIENT_PREALLOCATE=false turns it off.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench
from vram.units import GIB, MIB, size

NBYTES = 3 * GIB // 2
TAKES = Takes(NBYTES + 512 * MIB)
DEADLINE_S = 60.0

WORK = "import jax.numpy as jnp; x = jnp.zeros(1).block_until_ready()"


def measure(bench: Bench) -> Answer:
    fraction = NBYTES / bench.look("nothing").memory.total
    program = bench.actor(
        XLA_PYTHON_CLIENT_MEM_FRACTION=f"{fraction:.6f}",
        XLA_PYTHON_CLIENT_PREALLOCATE="true",
        JAX_PLATFORMS="cuda",
    )
    program.python(WORK)
    taken = bench.grown(bench.look("an array of one number"))
    because = f"{size(taken)} taken for one number, with the share set to {size(NBYTES)}"
    return Answer(taken > 0.9 * NBYTES, because, (figure("taken", taken), figure("share", NBYTES)))

"""Destroying a context frees the allocations that were made in it

Source
------
Question 4, which advises to see to it that contexts are destroyed.

Method
------
A process makes a context with cuCtxCreate, allocates 128 MiB in it, and destroys the context
without freeing them.

Reading
-------
True means that a library which destroys its context leaves nothing behind but the few MiB of a CUDA
that is initialised: see init-costs. Pointers into it are dead from then on.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.init()
    context = program.new_context()
    empty = bench.look("context")
    program.alloc(NBYTES)
    held = bench.look("allocated")
    bench.must_show(held, NBYTES, since=empty)
    program.destroy_context(context)
    left = bench.grown(bench.look("destroyed"))
    return weighed(left, bench.grown(held), "still used after the context was destroyed", claimed=False)

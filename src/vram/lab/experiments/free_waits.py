"""cudaFree waits for all work that was queued before it

Source
------
Question 5: cudaFree is called synchronous; question 1: a release may be issued long before
it is carried out.

Method
------
Work of half a second is queued on a stream of its own: a host function, so that no kernel is
needed. Then memory that the work does not touch is freed, and it is noted which came first: the
end of the work, or the return of the free.

Reading
-------
True means that a free in the middle of a pipeline stalls it. Stream-ordered frees (cudaFreeAsync)
do not wait.
"""

from __future__ import annotations

from vram.lab.answer import Answer, CannotTell, Takes, figure
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 64 * MIB
WORK_S = 0.5
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    began, freed, worked = program.free_behind_work(program.alloc(NBYTES), WORK_S)
    bench.look("freed")
    if began > worked:
        raise CannotTell("the machine was too busy: the work was done before the free began")
    waited = freed >= worked
    order = "after" if waited else "before"
    because = f"the free took {freed - began:.2f} s and returned {order} the queued work was done"
    return Answer(waited, because, (figure("the free took", round(freed - began, 4), "seconds"),))

"""cudaFree waits for all work that was queued before it

Source
------
Question 5: "cudaFree() operates synchronously"; question 1: a release may be issued long before
it is carried out.

Method
------
Work of half a second is queued on a stream of its own: a host function, so that no kernel is
needed. Then memory that the work does not touch is freed, and the call is timed.

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
    pointer = program.alloc(NBYTES)
    queued_s = program.queue_work(WORK_S)
    if queued_s > WORK_S / 2:
        raise CannotTell(f"queueing the work took {queued_s:.2f} s by itself")
    freed_s = program.timed_free(pointer)
    bench.look("freed")
    holds = True if freed_s > 0.8 * WORK_S else False if freed_s < 0.2 * WORK_S else None
    because = f"behind {WORK_S} s of queued work the free took {freed_s:.2f} s"
    return Answer(holds, because, (figure("the free took", round(freed_s, 4), "seconds"),))

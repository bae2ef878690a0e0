"""A CUDA context holds memory after its process has ended

Source
------
Question 4: a context that is badly looked after is said to keep memory when its program has ended.

Method
------
A process makes a context, allocates nothing, destroys nothing, and ends. What the context took is
compared with what is left.

Reading
-------
A context belongs to its process like any allocation. A destroyed context costs nothing, and one
that was never destroyed costs nothing either once its process is gone.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench

TAKES = Takes()


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    cost = bench.grown(bench.look("context"))
    if cost <= NEAR:
        raise CannotTell("a context takes too little here to be seen")
    program.leave()
    left = bench.grown(bench.look("ended"))
    return weighed(left, cost, "still used by the context after its process ended")

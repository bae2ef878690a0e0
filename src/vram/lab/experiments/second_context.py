"""A second context in the same process is free

Source
------
Folklore.

Method
------
A process makes its primary context, then another one with cuCtxCreate. What each took is
compared.

Reading
-------
Contexts do not share what they need. Libraries that make their own double the cost.
"""

from __future__ import annotations

from vram.lab.answer import NEAR, Answer, CannotTell, Takes, weighed
from vram.lab.bench import Bench

TAKES = Takes(contexts=2)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    first = bench.look("first")
    cost = bench.grown(first)
    if cost <= NEAR:
        raise CannotTell("a context takes too little here to be seen")
    program.new_context()
    more = bench.look("second").used - first.used
    return weighed(more, cost, "taken again by the second context", claimed=False)

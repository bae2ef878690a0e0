"""cudaFree(0) is an error

Source
------
Question 2: even calls that look harmless are said to fail.

Method
------
A process with a context frees the null pointer, and the driver's answer is read.

Reading
-------
Freeing nothing succeeds. In the runtime it is often the first call of a program, and creates the
context: that is what takes time and memory then.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure
from vram.lab.bench import Bench

TAKES = Takes()
OK = 0


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    code = program.free_code(0)
    return Answer(code != OK, f"cuMemFree of null answered {code}", (figure("answer", code, "code"),))

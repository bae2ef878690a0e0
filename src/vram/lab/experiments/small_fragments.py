"""Freeing half of many small allocations gives half of the memory back

Source
------
Folklore; question 3 speaks of fragmentation by allocations that are left over.

Method
------
A process makes 64 allocations of 512 KiB and frees every other one.

Reading
-------
The driver hands out 2 MiB at a time, and small allocations share them: one that stays keeps its
whole block. This is fragmentation that no tool shows from outside.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, mostly
from vram.lab.bench import Bench
from vram.units import KIB, size

PIECE = 512 * KIB
PIECES = 64
TAKES = Takes(PIECES * PIECE)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    pointers = [program.alloc(PIECE) for _ in range(PIECES)]
    whole = bench.look("allocated")
    bench.must_show(whole, PIECES * PIECE, since=empty)
    for pointer in pointers[::2]:
        program.free(pointer)
    back = whole.used - bench.look("every other one freed").used
    half = PIECES * PIECE // 2
    because = f"{size(back)} of the {size(half)} that were freed came back"
    return Answer(mostly(back, half), because, (figure("came back", back), figure("freed", half)))

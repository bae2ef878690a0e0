"""Freeing every other large allocation leaves holes that stay used

Source
------
Folklore; question 3 blames fragmentation for out-of-memory errors.

Method
------
A process makes 8 allocations of 32 MiB, frees every other one, and then asks for one piece as
large as all holes together. What the device has in use must end where it was.

Reading
-------
Device addresses are mapped to pages: holes of whole pages go back, and a larger piece can be made
of them. Fragmentation that hurts lies inside pools, which cut blocks themselves.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, mostly, of
from vram.lab.bench import Bench
from vram.units import MIB, size

PIECE = 32 * MIB
PIECES = 8
HOLES = PIECES // 2 * PIECE
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
    holes = HOLES - (whole.used - bench.look("every other one freed").used)
    program.alloc(HOLES)
    more = bench.look("holes taken as one").used - whole.used
    because = f"{of(holes, HOLES)} stayed used, and one piece in their place took {size(max(0, more))} more"
    return Answer(
        mostly(max(holes, more), HOLES), because, (figure("stayed used", holes), figure("took more", more))
    )

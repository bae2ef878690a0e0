"""An exception that somebody keeps holds GPU memory

Source
------
Question 4 speaks of exceptions that skip a free; notebooks and debuggers keep the last one.

Method
------
An exception passes through a frame that owns 128 MiB, and is kept where an interactive
interpreter keeps it (sys.last_value). After a garbage collection the device is read; then the
exception is dropped.

Reading
-------
A traceback holds its frames, and these hold their variables. `vram.flush()` drops kept
exceptions; `vram.holders()` names them.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB, size

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    program.fail_and_keep(NBYTES)
    kept = bench.look("kept").used - empty.used
    program.drop_exception()
    left = bench.look("dropped").used - empty.used
    answer = weighed(kept, NBYTES, "held by the kept exception")
    because = f"{answer.because}, {size(max(0, left))} when it was dropped"
    return Answer(answer.holds, because, (figure("kept", kept), figure("dropped", left)))

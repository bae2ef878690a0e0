"""A CUDA graph gives its memory back when it is destroyed

Source
------
Folklore.

Method
------
A graph that allocates 128 MiB and frees them is captured, launched once, and destroyed. Then the
device's graph memory is trimmed (cuDeviceGraphMemTrim).

Reading
-------
Graphs allocate from a store of their own, which keeps what it has for the next launch. Only a
trim returns it, and neither empty_cache() nor a pool's trim reaches it.
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
    program.run_graph(NBYTES)
    bench.must_show(bench.look("launched"), NBYTES, since=empty)
    program.destroy_graph()
    kept = bench.look("destroyed").used - empty.used
    program.trim_graph_memory()
    left = bench.look("trimmed").used - empty.used
    answer = weighed(kept, NBYTES, "still used after the graph was destroyed", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after the trim"
    return Answer(answer.holds, because, (figure("destroyed", kept), figure("trimmed", left)))

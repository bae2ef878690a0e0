"""An exception that skips cudaFree leaks memory from run to run

Source
------
Questions 3 and 4: a step that fails before its free is said to use the memory up from run to run.

Method
------
Three runs, one after the other: each allocates 128 MiB, an exception jumps over the free, and the
program ends. The device is read after the last.

Reading
-------
What a run leaves unfreed goes with its process. The same mistake inside one long-lived process
adds up: see exception-in-process.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

RUNS = 3
NBYTES = 128 * MIB
TAKES = Takes(RUNS * NBYTES, contexts=RUNS)


def measure(bench: Bench) -> Answer:
    for number in range(RUNS):
        program = bench.actor()
        program.context()
        before = bench.look(f"run {number + 1}")
        program.fail_with_raw_pointer(NBYTES)
        bench.must_show(bench.look(f"run {number + 1}, leaked"), NBYTES, since=before)
        program.leave()
    left = bench.grown(bench.look("all runs ended"))
    return weighed(left, RUNS * NBYTES, f"still used after {RUNS} runs")

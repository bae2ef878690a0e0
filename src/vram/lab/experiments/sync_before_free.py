"""cudaDeviceSynchronize before cudaFree gives more memory back

Source
------
Question 1: waiting for the device first is said to bring memory back sooner.

Method
------
256 MiB are written by the device and freed without waiting; the device is read. The same again,
with a synchronisation before the free. The two readings are compared.

Reading
-------
False means that the free by itself does all there is to do: it waits anyway (see free-waits).
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, figure, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 256 * MIB
TAKES = Takes(NBYTES)


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.context()
    empty = bench.look("context")
    hasty = program.alloc(NBYTES)
    program.start_fill(hasty, NBYTES)
    bench.must_show(bench.look("allocated"), NBYTES, since=empty)
    program.free(hasty)
    without = bench.look("freed").used - empty.used
    patient = program.alloc(NBYTES)
    program.start_fill(patient, NBYTES)
    program.synchronize()
    program.free(patient)
    with_it = bench.look("synchronised, freed").used - empty.used
    answer = weighed(without - with_it, NBYTES, "came back only with the synchronisation")
    figures = (figure("left without it", without), figure("left with it", with_it))
    return Answer(answer.holds, answer.because, figures)

"""PyCUDA's memory stays after the thread that allocated it has ended

Source
------
Question 3: what a thread allocated by PyCUDA is said to stay when the thread ends.

Method
------
A thread of a PyCUDA program makes the context current, allocates 128 MiB with mem_alloc, gives
the context back and ends.

Reading
-------
mem_alloc returns an owner object: where this is false, its destructor has freed the memory. Where
it is true, the destructor could not make the context current in its thread.
"""

from __future__ import annotations

from vram.lab.answer import Answer, Takes, weighed
from vram.lab.bench import Bench
from vram.units import MIB

NBYTES = 128 * MIB
TAKES = Takes(NBYTES)
DEADLINE_S = 60.0

START = f"""
import threading
import pycuda.driver as cuda
cuda.init()
context = cuda.Device(0).make_context()
witness = cuda.mem_alloc({NBYTES})
"""
WORK = f"""
def worker():
    context.push()
    memory = cuda.mem_alloc({NBYTES})
    context.pop()
context.pop()
thread = threading.Thread(target=worker)
thread.start()
thread.join()
context.push()
"""


def measure(bench: Bench) -> Answer:
    program = bench.actor()
    program.python(START)
    held = bench.look("allocated")
    bench.must_show(held, NBYTES)
    program.python("witness.free()")
    empty = bench.look("freed")
    program.python(WORK)
    kept = bench.look("thread ended").used - empty.used
    return weighed(kept, NBYTES, "still used after the thread ended")

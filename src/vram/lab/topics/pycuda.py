"""Claims: PyCUDA, whose contexts belong to the thread that made them."""

from __future__ import annotations

from functools import partial

from vram.lab.claim import WITH_FRAMEWORK_S, CannotTell, Conclusion, Takes, claim, figure, judge
from vram.lab.experiment import Experiment
from vram.units import MIB

TOPIC = "Frameworks"

pycuda_claim = partial(claim, topic=TOPIC, deadline_s=WITH_FRAMEWORK_S)

MIB_64, MIB_128 = 64 * MIB, 128 * MIB

PYCUDA_START = f"""
import threading, warnings
import pycuda.driver as cuda
cuda.init()
context = cuda.Device(0).make_context()
witness = cuda.mem_alloc({MIB_128})
"""
PYCUDA_RUN = """
context.pop()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
context.push()
answer = [str(each.message) for each in seen]
"""
PYCUDA_LOCAL = f"""
def worker():
    context.push()
    memory = cuda.mem_alloc({MIB_128})
    context.pop()
"""
PYCUDA_INNER = f"""
def work():
    memory = cuda.mem_alloc({MIB_128})

def worker():
    context.push()
    work()
    context.pop()
"""
PYCUDA_FREE = f"""
def worker():
    context.push()
    memory = cuda.mem_alloc({MIB_128})
    memory.free()
    context.pop()
"""


def _after_thread(experiment: Experiment, worker: str, *, claimed: bool) -> tuple[Conclusion, list[str]]:
    """Conclude from what is used after a thread ran *worker*; and what PyCUDA warned of."""
    program = experiment.worker()
    program.call("run_python", PYCUDA_START)
    experiment.must_show("allocated", MIB_128)
    program.call("run_python", "witness.free()")
    empty = experiment.read_device("freed")
    warned = program.call("run_python", worker + PYCUDA_RUN)
    kept = experiment.used("thread ended", since=empty)
    answer = judge(kept, MIB_128, "still used after the thread ended", claimed=claimed)
    figures = (*answer.figures, figure("warnings", len(warned), "count"))
    return Conclusion(answer.holds, answer.because, figures), warned


@pycuda_claim("pycuda-thread", takes=Takes(MIB_128))
def pycuda_thread(experiment: Experiment) -> Conclusion:
    """PyCUDA's memory stays after the thread that allocated it has ended

    Source: Question 3: what a thread allocated by PyCUDA is said to stay when the thread ends.

    Method:
    A thread of a PyCUDA program makes the context current, allocates 128 MiB with mem_alloc, pops
    the context and returns: its variable is dropped after the pop.

    Reading:
    mem_alloc returns an owner object. True means that its destructor skipped the free and only warned: the
    context was not current, and the thread is not the one that made the context. pycuda-inner-function and
    pycuda-free show the remedies.
    """
    answer, warned = _after_thread(experiment, PYCUDA_LOCAL, claimed=True)
    said = f"; PyCUDA warned: {warned[0]}" if warned else "; PyCUDA warned of nothing"
    return Conclusion(answer.holds, answer.because + said, answer.figures)


@pycuda_claim("pycuda-inner-function", takes=Takes(MIB_128))
def pycuda_inner_function(experiment: Experiment) -> Conclusion:
    """A function inside push and pop lets PyCUDA free what a thread allocated

    Source: Question 3, which asks for memory to be released before the thread ends.

    Method:
    As pycuda-thread, but the thread allocates in a function of its own, which returns before the context is
    popped.

    Reading:
    True means that the variables of the function die while the context is current, and PyCUDA frees.
    """
    return _after_thread(experiment, PYCUDA_INNER, claimed=False)[0]


@pycuda_claim("pycuda-free", takes=Takes(MIB_128))
def pycuda_free(experiment: Experiment) -> Conclusion:
    """Calling free() before the pop releases a PyCUDA allocation

    Source: Question 3, of its explicit release.

    Method:
    As pycuda-thread, but the thread calls the allocation's free() before it pops the context.

    Reading:
    True means that the method of the object is the way to free: a function for it does not exist, see
    pycuda-mem-free.
    """
    return _after_thread(experiment, PYCUDA_FREE, claimed=False)[0]


PYCUDA_AUTOINIT = f"""
import threading
import pycuda.autoinit
import pycuda.driver as cuda
here = cuda.mem_alloc({MIB_64})
said = []
def worker():
    try:
        cuda.mem_alloc({MIB_64})
    except cuda.Error as error:
        said.append(str(error))
thread = threading.Thread(target=worker)
thread.start()
thread.join()
answer = said
"""


@pycuda_claim("pycuda-autoinit-threads", takes=Takes(2 * MIB_64))
def pycuda_autoinit_threads(experiment: Experiment) -> Conclusion:
    """After `import pycuda.autoinit` every thread can allocate

    Source: Question 3, whose programs import it once and allocate in threads.

    Method:
    A program imports pycuda.autoinit and allocates 64 MiB, then starts a thread that does the same.

    Reading:
    False means that the programs fail as written: autoinit's context is current only in the thread that
    imported it. A thread needs context.push() first, or pycuda.autoprimaryctx and a retain of its own.
    """
    said = experiment.worker().call("run_python", PYCUDA_AUTOINIT)
    experiment.must_show("thread ended", MIB_64)
    because = f"the thread was refused: {said[0]}" if said else "the thread allocated"
    return Conclusion(not said, because, (figure("refusals", len(said), "count"),))


PYCUDA_MEM_FREE = """
import pycuda.driver as cuda
answer = hasattr(cuda, "mem_free"), hasattr(cuda.DeviceAllocation, "free"), hasattr(cuda, "mem_alloc")
"""


@pycuda_claim("pycuda-mem-free", takes=Takes(contexts=0))
def pycuda_mem_free(experiment: Experiment) -> Conclusion:
    """PyCUDA has a function mem_free

    Source: Question 3, whose programs call it.

    Method:
    The module pycuda.driver is asked for mem_free, and its DeviceAllocation for free.

    Reading:
    False means that those programs end with an AttributeError, and inside a `__del__` unnoticed. An
    allocation has a method free() instead.
    """
    function, method, allocates = experiment.worker().call("run_python", PYCUDA_MEM_FREE)
    if not allocates:
        raise CannotTell("pycuda.driver has no mem_alloc either: it is not the module that was meant")
    because = (
        f"pycuda.driver {'has' if function else 'has no'} mem_free;"
        f" DeviceAllocation {'has' if method else 'has no'} free()"
    )
    return Conclusion(function, because, (figure("mem_free", int(function), "count"),))

"""Claims: pools and graphs."""

from __future__ import annotations

from vram.lab.claim import Conclusion, Takes, claim, judge
from vram.lab.experiment import Experiment
from vram.units import MIB

TOPIC = "Pools and graphs"


@claim("pool-keeps", TOPIC, takes=Takes(256 * MIB))
def pool_keeps(experiment: Experiment) -> Conclusion:
    """Memory that is freed into a pool stays used

    Source: Folklore; question 1 blames pools and caches.

    Method:
    A stream-ordered pool is told to keep what it gets (release threshold at its greatest, as
    frameworks set it). 256 MiB are allocated from it, freed and synchronised, then the pool is
    trimmed.

    Reading:
    From outside, a pool's unused memory looks like any other. Only the process can release it:
    cuMemPoolTrimTo, empty_cache() and their like, or `vram trim` from outside.
    """
    program = experiment.cuda_worker()
    program.call("pool_keep_all")
    empty = experiment.read_device("context")
    pointer = program.call("alloc_async", experiment.nbytes)
    experiment.must_show("allocated", since=empty)
    program.call("free_async", pointer)
    program.call("synchronize")
    kept = experiment.used("freed", since=empty)
    program.call("pool_trim")
    left = experiment.used("trimmed", since=empty)
    answer = judge(kept, experiment.nbytes, "still used after the free")
    return answer.and_later(left, "after the trim", after_the_free=kept, after_the_trim=left)


@claim("pool-keeps-by-default", TOPIC, takes=Takes(256 * MIB))
def pool_keeps_by_default(experiment: Experiment) -> Conclusion:
    """A stream-ordered pool keeps freed memory unless it is told otherwise

    Source: Folklore: cudaMallocAsync is said to cache like PyTorch does.

    Method:
    256 MiB are allocated from the default pool with its settings as they are, freed, and the stream
    is synchronised.

    Reading:
    False means that the default pool releases everything at the next synchronisation (its release
    threshold is 0). Frameworks raise the threshold: see pool-keeps.
    """
    program, empty, pointer = experiment.allocator("alloc_async")
    program.call("free_async", pointer)
    program.call("synchronize")
    kept = experiment.used("freed, synchronised", since=empty)
    return judge(kept, experiment.nbytes, "still used after the free and a synchronisation")


@claim("async-free-at-once", TOPIC, takes=Takes(256 * MIB))
def async_free_at_once(experiment: Experiment) -> Conclusion:
    """cudaFreeAsync releases memory at once

    Source: Folklore; question 1 says that the device may carry out a release later.

    Method:
    256 MiB are allocated from the default pool and freed in the stream's order. The device is read
    without any synchronisation, and again after one.

    Reading:
    The free is a request in a queue: until the program synchronises, the pool keeps the memory.
    """
    program, empty, pointer = experiment.allocator("alloc_async")
    program.call("free_async", pointer)
    kept = experiment.used("freed", since=empty)
    program.call("synchronize")
    left = experiment.used("synchronised", since=empty)
    answer = judge(kept, experiment.nbytes, "still used after the free", claimed=False)
    return answer.and_later(left, "after a synchronisation", after_the_free=kept, synchronised=left)


@claim("graph-memory", TOPIC, takes=Takes(128 * MIB))
def graph_memory(experiment: Experiment) -> Conclusion:
    """A CUDA graph releases its memory when it is destroyed

    Source: Folklore.

    Method:
    A graph that allocates 128 MiB and frees them is captured, launched once, and destroyed. Then the
    device's graph memory is trimmed (cuDeviceGraphMemTrim).

    Reading:
    Graphs allocate from a store of their own, which keeps what it has for the next launch. Only a
    trim returns it, and neither empty_cache() nor a pool's trim reaches it.
    """
    program, empty, _ = experiment.allocator("run_graph", stage="launched")
    program.call("destroy_graph")
    kept = experiment.used("destroyed", since=empty)
    program.call("trim_graph_memory")
    left = experiment.used("trimmed", since=empty)
    answer = judge(kept, experiment.nbytes, "still used after the graph was destroyed", claimed=False)
    return answer.and_later(left, "after the trim", destroyed=kept, trimmed=left)

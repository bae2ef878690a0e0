"""Claims: threads and objects."""

from __future__ import annotations

from vram.lab.claim import Conclusion, Takes, claim, judge
from vram.lab.experiment import Experiment
from vram.units import MIB

TOPIC = "Threads and objects"


@claim("thread-end-frees", TOPIC, takes=Takes(4 * 64 * MIB))
def thread_end_frees(experiment: Experiment) -> Conclusion:
    """The end of a thread frees what the thread allocated

    Source: Question 3, which rightly says that it does not.

    Method:
    Four threads of one process allocate 64 MiB each through raw pointers, and end.

    Reading:
    Device memory belongs to the process. Without an owner object, nobody is left who could free it:
    see owner-object.
    """
    threads = 4
    nbytes = 64 * MIB
    program, empty = experiment.worker_with_context()
    for _ in range(threads):
        program.call("thread_alloc", nbytes)
    kept = experiment.used("threads ended", since=empty)
    return judge(kept, threads * nbytes, f"still used after {threads} threads ended", claimed=False)


@claim("thread-frees", TOPIC, takes=Takes(2 * 128 * MIB))
def thread_frees(experiment: Experiment) -> Conclusion:
    """A free inside the thread releases its memory before the thread ends

    Source: Question 3, of its explicit release.

    Method:
    A process allocates 128 MiB and frees them, to see that they show; then a thread of it does both
    and ends.

    Reading:
    True, and more than is needed: any thread may free it (see free-in-other-thread), and an owner
    object does so by itself (see owner-object).
    """
    nbytes = 128 * MIB
    program, empty = experiment.worker_with_context()
    witness = program.call("alloc", nbytes)
    experiment.must_show("allocated", nbytes, since=empty)
    program.call("free", witness)
    program.call("thread_alloc_and_free", nbytes)
    kept = experiment.used("thread ended", since=empty)
    return judge(kept, nbytes, "still used after the thread", claimed=False)


@claim("owner-object", TOPIC, takes=Takes(4 * 64 * MIB))
def owner_object(experiment: Experiment) -> Conclusion:
    """An object that frees in its destructor releases a thread's memory

    Source: Question 3, which says both: garbage collection alone tells the driver nothing, and a `__del__`
    that frees helps.

    Method:
    Four threads of one process allocate 64 MiB each through an object whose destructor frees, and
    end.

    Reading:
    True means that the garbage collector can free device memory very well, through an owner.
    `vram.Buffer` is one.
    """
    threads = 4
    nbytes = 64 * MIB
    program, empty = experiment.worker_with_context()
    witness = program.call("alloc", nbytes)
    experiment.must_show("one allocated", nbytes, since=empty)
    program.call("free", witness)
    for _ in range(threads):
        program.call("thread_alloc_owned", nbytes)
    kept = experiment.used("threads ended", since=empty)
    return judge(kept, threads * nbytes, "still used after the threads ended", claimed=False)


@claim("free-in-other-thread", TOPIC, takes=Takes(128 * MIB))
def free_in_other_thread(experiment: Experiment) -> Conclusion:
    """Only the thread that allocated memory can free it

    Source: Folklore.

    Method:
    A thread allocates 128 MiB and ends. Another thread of the same process frees them.

    Reading:
    A pointer belongs to its context, and every thread that makes the context current may free it.
    """
    program, empty, pointer = experiment.allocator("thread_alloc")
    program.call("thread_free", pointer)
    kept = experiment.used("freed by another", since=empty)
    return judge(kept, experiment.nbytes, "still used after another thread freed it")


@claim("exception-in-process", TOPIC, takes=Takes(128 * MIB))
def exception_in_process(experiment: Experiment) -> Conclusion:
    """An exception that somebody keeps holds GPU memory

    Source: Question 4 speaks of exceptions that skip a free; notebooks and debuggers keep the last one.

    Method:
    An exception passes through a frame that owns 128 MiB, and is kept where an interactive
    interpreter keeps it (sys.last_value). After a garbage collection the device is read; then the
    exception is dropped.

    Reading:
    A traceback holds its frames, and these hold their variables. `vram.flush()` drops kept
    exceptions; `vram.holders()` names them.
    """
    program, empty = experiment.worker_with_context()
    program.call("fail_and_keep", experiment.nbytes)
    kept = experiment.used("kept", since=empty)
    program.call("drop_exception")
    left = experiment.used("dropped", since=empty)
    answer = judge(kept, experiment.nbytes, "held by the kept exception")
    return answer.and_later(left, "when it was dropped", kept=kept, dropped=left)

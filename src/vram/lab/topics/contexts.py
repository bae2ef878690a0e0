"""Claims: what a context costs, and what frees it."""

from __future__ import annotations

from vram.lab.claim import NEAR, OK, CannotTell, Conclusion, Takes, claim, figure, judged
from vram.lab.experiment import Experiment
from vram.units import MIB, size

TOPIC = "Contexts"


@claim("context-free-of-charge", TOPIC, takes=Takes())
def context_free_of_charge(experiment: Experiment) -> Conclusion:
    """A CUDA context costs no memory worth mentioning

    Source
    ------
    Folklore: a program that allocates nothing is taken to use nothing.

    Method
    ------
    A process makes a context and allocates nothing.

    Reading
    -------
    Every process that touches CUDA pays for a context first. Ten idle workers cost ten of them: `vram
    why` shows the column.
    """
    worth = 32 * MIB
    experiment.worker().call("context")
    cost = experiment.grown(experiment.read_device("context"))
    return Conclusion(cost < worth, f"a context took {size(cost)}", (figure("a context", cost),))


@claim("second-context", TOPIC, takes=Takes(contexts=2))
def second_context(experiment: Experiment) -> Conclusion:
    """A second context in the same process is free

    Source
    ------
    Folklore.

    Method
    ------
    A process makes its primary context, then another one with cuCtxCreate. What each took is
    compared.

    Reading
    -------
    Contexts do not share what they need. Libraries that make their own double the cost.
    """
    program = experiment.worker()
    program.call("context")
    first = experiment.read_device("first")
    cost = experiment.grown(first)
    if cost <= NEAR:
        raise CannotTell("a context is too small here to be measured")
    program.call("new_context")
    more = experiment.read_device("second").used - first.used
    return judged(more, cost, "taken again by the second context", claimed=False)


@claim("init-costs", TOPIC, takes=Takes())
def init_costs(experiment: Experiment) -> Conclusion:
    """Initialising CUDA costs device memory before there is any context

    Source
    ------
    Folklore.

    Method
    ------
    A process calls cuInit and makes no context.

    Reading
    -------
    Where it is true the cost is a few MiB, once for all processes, and in no list. A context costs a
    hundred times as much: see context-free-of-charge.
    """
    if experiment.before.charges:
        raise CannotTell("other processes use CUDA already and have paid the one-time cost")
    experiment.worker().call("init")
    reading = experiment.read_device("cuInit")
    cost = experiment.grown(reading)
    return Conclusion(cost > 0, f"cuInit alone took {size(max(0, cost))}", (figure("cuInit", cost),))


@claim("stream-returns", TOPIC, takes=Takes(64 * MIB))
def stream_returns(experiment: Experiment) -> Conclusion:
    """Destroying streams returns the device memory that they took

    Source
    ------
    Folklore; question 5 warns of programs with many streams.

    Method
    ------
    A process makes 64 streams and destroys them.

    Reading
    -------
    False means that a context keeps what its streams took, for the next ones. It is little, it is not a leak,
    and it goes with the context.
    """
    streams = 64
    program, empty = experiment.worker_with_context()
    program.call("make_streams", streams)
    taken = experiment.read_device("streams").used - empty.used
    if taken <= 0:
        raise CannotTell(f"{streams} streams took no device memory here")
    program.call("destroy_streams")
    left = experiment.read_device("destroyed").used - empty.used
    because = (
        f"{streams} streams took {size(taken)}, and {size(max(0, left))} stayed when they were destroyed"
    )
    return Conclusion(left < taken // 2, because, (figure("taken", taken), figure("stayed", left)))


@claim("context-close-frees", TOPIC, takes=Takes(128 * MIB))
def context_close_frees(experiment: Experiment) -> Conclusion:
    """Destroying a context frees the allocations that were made in it

    Source
    ------
    Question 4, which advises to see to it that contexts are destroyed.

    Method
    ------
    A process makes a context with cuCtxCreate, allocates 128 MiB in it, and destroys the context
    without freeing them.

    Reading
    -------
    True means that a library which destroys its context leaves nothing behind but the few MiB of a CUDA
    that is initialised: see init-costs. Pointers into it are dead from then on.
    """
    nbytes = 128 * MIB
    program = experiment.worker()
    program.call("init")
    context = program.call("new_context")
    empty = experiment.read_device("context")
    program.call("alloc", nbytes)
    held = experiment.read_device("allocated")
    experiment.must_show(held, nbytes, since=empty)
    program.call("destroy_context", context)
    left = experiment.grown(experiment.read_device("destroyed"))
    return judged(left, experiment.grown(held), "still used after the context was destroyed", claimed=False)


@claim("parked-leaves-nothing", TOPIC, takes=Takes(256 * MIB))
def parked_leaves_nothing(experiment: Experiment) -> Conclusion:
    """A parked (checkpointed) process leaves nothing on the GPU

    Source
    ------
    Folklore; the promise of CUDA checkpointing, on which `vram park` stands.

    Method
    ------
    A process with 256 MiB is locked and checkpointed by the driver, the device is read, and the
    process is restored and unlocked.

    Reading
    -------
    True means that even the context is gone; the contents wait in host memory. The few MiB that are
    left are there as long as any process has CUDA initialised: see init-costs. Drivers before 570 cannot
    do it, and managed memory, MIG and MPS refuse.
    """
    nbytes = 256 * MIB
    program, held = experiment.holder(nbytes)
    other = experiment.worker()
    other.call("init")
    for verb in ("Lock", "Checkpoint"):
        code = other.call("checkpoint_code", verb, program.pid)
        if code != OK:
            raise CannotTell(f"cuCheckpointProcess{verb} returned {code}")
    left = experiment.grown(experiment.read_device("parked"))
    codes = [other.call("checkpoint_code", verb, program.pid) for verb in ("Restore", "Unlock")]
    back = experiment.grown(experiment.read_device("brought back"))
    answer = judged(left, held, "used while it is parked", claimed=False)
    refused = "" if codes == [OK, OK] else f"; restoring and unlocking it returned {codes}"
    because = f"{answer.because}, {size(back)} when it was back{refused}"
    return Conclusion(answer.holds, because, (figure("parked", left), figure("brought back", back)))

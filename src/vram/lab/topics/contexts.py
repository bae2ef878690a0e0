"""Claims: what a context costs, what frees it, and what a reset of the device returns."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from vram.lab.claim import NEAR, OK, CannotTell, Conclusion, Takes, claim, figure, judge
from vram.lab.experiment import Experiment
from vram.lab.worker import WorkerClient
from vram.units import MIB, size

TOPIC = "Contexts"


@claim("context-free-of-charge", TOPIC, takes=Takes())
def context_free_of_charge(experiment: Experiment) -> Conclusion:
    """A CUDA context costs no memory worth mentioning

    Source: Folklore: a program that allocates nothing is taken to use nothing.

    Method:
    A process makes a context and allocates nothing.

    Reading:
    Every process that touches CUDA pays for a context first. Ten idle workers cost ten of them: `vram
    why` shows the column.
    """
    worth = 32 * MIB
    experiment.worker().call("context")
    cost = experiment.used("context")
    return Conclusion(cost < worth, f"a context took {size(cost)}", (figure("a context", cost),))


@claim("second-context", TOPIC, takes=Takes(contexts=2))
def second_context(experiment: Experiment) -> Conclusion:
    """A second context in the same process is free

    Source: Folklore.

    Method:
    A process makes its primary context, then another one with cuCtxCreate. What each took is
    compared.

    Reading:
    Contexts do not share what they need. Libraries that make their own double the cost.
    """
    program = experiment.cuda_worker()
    first = experiment.read_device("first")
    cost = experiment.grown(first)
    if cost <= NEAR:
        raise CannotTell("a context is too small here to be measured")
    program.call("new_context")
    more = experiment.used("second", since=first)
    return judge(more, cost, "taken again by the second context", claimed=False)


@claim("init-costs", TOPIC, takes=Takes())
def init_costs(experiment: Experiment) -> Conclusion:
    """Initialising CUDA costs device memory before there is any context

    Source: Folklore.

    Method:
    A process calls cuInit and makes no context.

    Reading:
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

    Source: Folklore; question 5 warns of programs with many streams.

    Method:
    A process makes 64 streams and destroys them.

    Reading:
    False means that a context keeps what its streams took, for the next ones. It is little, it is not a leak,
    and it goes with the context.
    """
    streams = 64
    program, empty = experiment.worker_with_context()
    program.call("make_streams", streams)
    taken = experiment.used("streams", since=empty)
    if taken <= 0:
        raise CannotTell(f"{streams} streams took no device memory here")
    program.call("destroy_streams")
    left = experiment.used("destroyed", since=empty)
    because = (
        f"{streams} streams took {size(taken)}, and {size(max(0, left))} stayed when they were destroyed"
    )
    return Conclusion(left < taken // 2, because, (figure("taken", taken), figure("stayed", left)))


@claim("context-close-frees", TOPIC, takes=Takes(128 * MIB))
def context_close_frees(experiment: Experiment) -> Conclusion:
    """Destroying a context frees the allocations that were made in it

    Source: Question 4, which advises to see to it that contexts are destroyed.

    Method:
    A process makes a context with cuCtxCreate, allocates 128 MiB in it, and destroys the context
    without freeing them.

    Reading:
    True means that a library which destroys its context leaves nothing behind but the few MiB of a CUDA
    that is initialised: see init-costs. Pointers into it are dead from then on.
    """
    program = experiment.worker()
    program.call("init")
    context = program.call("new_context")
    empty = experiment.read_device("context")
    program.call("alloc", experiment.nbytes)
    held = experiment.must_show("allocated", since=empty)
    program.call("destroy_context", context)
    left = experiment.used("destroyed")
    return judge(left, experiment.grown(held), "still used after the context was destroyed", claimed=False)


@claim("parked-leaves-nothing", TOPIC, takes=Takes(256 * MIB))
def parked_leaves_nothing(experiment: Experiment) -> Conclusion:
    """A parked (checkpointed) process leaves nothing on the GPU

    Source: Folklore; the promise of CUDA checkpointing, on which `vram park` stands.

    Method:
    A process with 256 MiB is locked and checkpointed by the driver, the device is read, and the
    process is restored and unlocked.

    Reading:
    True means that even the context is gone; the contents wait in host memory. The few MiB that are
    left are there as long as any process has CUDA initialised: see init-costs. Drivers before 570 cannot
    do it, and managed memory, MIG and MPS refuse.
    """
    program, held = experiment.holder()
    other = experiment.worker()
    other.call("init")
    for verb in ("Lock", "Checkpoint"):
        code = other.call("checkpoint_code", verb, program.pid)
        if code != OK:
            raise CannotTell(f"cuCheckpointProcess{verb} returned {code}")
    left = experiment.used("parked")
    codes = [other.call("checkpoint_code", verb, program.pid) for verb in ("Restore", "Unlock")]
    back = experiment.used("brought back")
    answer = judge(left, held, "used while it is parked", claimed=False)
    refused = "" if codes == [OK, OK] else f"; restoring and unlocking it returned {codes}"
    because = f"{answer.because}, {size(back)} when it was back{refused}"
    return Conclusion(answer.holds, because, (figure("parked", left), figure("brought back", back)))


# ---- resets ----

PIECE = 64 * MIB


def runtime_program(experiment: Experiment) -> WorkerClient:
    """A worker whose primary context was made as programs make it, by the first call of the runtime."""
    program = experiment.worker()
    make_context(program)
    return program


def make_context(program: WorkerClient) -> None:
    program.call("free_null_code")
    program.call("context")


def reset(program: WorkerClient) -> str:
    """Reset the device in *program*; return the name of the call that was made."""
    call, code = program.call("reset_code")
    if code != OK:
        raise CannotTell(f"{call} returned {code}")
    return str(call)


@claim("reset-primary", TOPIC, takes=Takes(2 * 128 * MIB))
def reset_primary(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset returns what cudaMalloc and cudaMallocManaged allocated

    Source: Question 4, which advises to reset the device before a program ends.

    Method:
    A process allocates 128 MiB of plain memory, has the device write to them, forgets the pointer, and
    resets the device. The same again with managed memory. It lives on while the device is read.

    Reading:
    True means that all of it comes back and the context with it, but for the few MiB of a CUDA that is
    initialised: see init-costs. Other kinds of memory stay: see reset-not-enough.
    """
    nbytes = 128 * MIB
    program = runtime_program(experiment)
    empty = experiment.read_device("context")
    program.call("fill", program.call("alloc", nbytes), 0xA5, nbytes)
    held = experiment.must_show("plain memory", nbytes, since=empty)
    call = reset(program)
    plain = experiment.used("reset")
    make_context(program)
    program.call("fill", program.call("alloc_managed", nbytes), 0xA5, nbytes)
    experiment.must_show("managed memory", nbytes, since=empty)
    reset(program)
    managed = experiment.used("reset again")
    answer = judge(max(plain, managed), nbytes, f"still used after {call}", claimed=False)
    because = (
        f"of {size(experiment.grown(held))} with the context, {call} left {size(max(0, plain))} of plain and"
        f" {size(max(0, managed))} of managed memory"
    )
    return Conclusion(answer.holds, because, (figure("plain", plain), figure("managed", managed)))


@claim("reset-not-enough", TOPIC, takes=Takes(4 * PIECE, contexts=2))
def reset_not_enough(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset is not enough to release everything

    Source: Question 4: resetting the context is said not to suffice every time.

    Method:
    A process holds 64 MiB of each of four kinds: plain memory, memory of cuMemCreate, a descriptor that was
    exported of such memory, and plain memory in a second context that cuCtxCreate made. It resets the
    device. Then it releases what is left, kind by kind: what a release returns had stayed.

    Reading:
    True means that the reset ends one context, the one that the runtime uses, and frees only what is in it.
    PyCUDA's contexts and PyTorch's expandable segments (cuMemCreate) are outside. What stays goes when
    it is released, or when the process ends. For pools see reset-pools.
    """
    program = runtime_program(experiment)
    empty = experiment.read_device("context")
    program.call("alloc", PIECE)
    handle, exported = program.call("create", PIECE), program.call("create", PIECE)
    descriptor = program.call("export", exported)
    program.call("release", exported)
    experiment.must_show("three kinds", 3 * PIECE, since=empty)
    second = program.call("new_context")
    program.call("alloc", PIECE)
    experiment.read_device("a second context, and memory in it")
    call = reset(program)
    left = experiment.read_device("reset")
    steps: tuple[tuple[str, Callable[[], object]], ...] = (
        ("in a second context, itself included", lambda: program.call("destroy_context", second)),
        ("of cuMemCreate", lambda: program.call("release", handle)),
        ("of an exported descriptor", lambda: program.call("close", descriptor)),
    )
    stayed = tuple(figure(kind, _returned_by(experiment, kind, release)) for kind, release in steps)
    parts = ", ".join(f"{size(max(0, int(each.value)))} {each.name}" for each in stayed)
    because = f"{size(experiment.grown(left))} still used after {call}: {parts}"
    return Conclusion(any(each.value > NEAR for each in stayed), because, stayed)


def _returned_by(experiment: Experiment, kind: str, release: Callable[[], object]) -> int:
    """What *release* returns to the device. If it is refused, the reset had released that kind already."""
    before = experiment.read_device(f"before the release: {kind}")
    with suppress(CannotTell):
        release()
    return before.used - experiment.read_device(f"after the release: {kind}").used


@claim("reset-pools", TOPIC, takes=Takes(2 * PIECE))
def reset_pools(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset returns what cudaMallocAsync allocated

    Source: Question 4, which advises to reset the device before a program ends.

    Method:
    A process takes 64 MiB from the device's default pool, as cudaMallocAsync does, and 64 MiB from a
    pool that it made. It frees neither, and resets the device.

    Reading:
    False means that pools belong to the process and not to its context: their memory is in use although
    no context is left. It returns when it is freed and the pool is trimmed, or when the process ends.
    """
    program = runtime_program(experiment)
    reset(program)
    floor = experiment.read_device("CUDA initialised, no context")
    make_context(program)
    program.call("alloc_async", PIECE)
    one = experiment.read_device("from the default pool")
    program.call("alloc_in_new_pool", PIECE)
    experiment.must_show("from a pool of its own", PIECE, since=one)
    call = reset(program)
    left = experiment.used("reset", since=floor)
    return judge(left, 2 * PIECE, f"still used after {call}, with no context left", claimed=False)


@claim("reset-shared", TOPIC, takes=Takes(2 * PIECE, contexts=2))
def reset_shared(experiment: Experiment) -> Conclusion:
    """A reset takes memory away from processes that have opened it by IPC

    Source: Folklore.

    Method:
    A process allocates 128 MiB, and another one opens them by IPC. The first resets the device, then the
    other one does.

    Reading:
    False means that an importer keeps the memory, whatever becomes of the process that allocated it. Its
    own reset closes what it opened.
    """
    importer = runtime_program(experiment)
    importer_alone = experiment.read_device("the importer's context").used
    owner = runtime_program(experiment)
    empty = experiment.read_device("both contexts")
    pointer = owner.call("alloc", experiment.nbytes)
    importer.call("ipc_open", owner.call("ipc_handle", pointer))
    experiment.must_show("opened", since=empty)
    reset(owner)
    kept = experiment.read_device("reset by the owner").used - importer_alone
    call = reset(importer)
    left = experiment.used("reset by the importer")
    answer = judge(kept, experiment.nbytes, "still used after the owner's reset", claimed=False)
    because = f"{answer.because}, {size(max(0, left))} after {call} in the importer"
    return Conclusion(answer.holds, because, (figure("owner reset", kept), figure("importer reset", left)))


@claim("reset-other-current", TOPIC, takes=Takes(2 * PIECE, contexts=2))
def reset_other_current(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset resets the device whichever context is current

    Source: Folklore; question 4 takes the call to be the last resort.

    Method:
    A process has 64 MiB in its primary context. It makes a second one with cuCtxCreate, which is current
    from then on, allocates 64 MiB there, and calls cudaDeviceReset. Then it makes the primary one current
    and calls it again.

    Reading:
    False means that the call reports success and resets nothing, because a context of the program's own
    (PyCUDA's, for example) is current in the thread. Pop that context first.
    """
    program = runtime_program(experiment)
    empty = experiment.read_device("context")
    program.call("alloc", PIECE)
    experiment.must_show("allocated", PIECE, since=empty)
    program.call("new_context")
    program.call("alloc", PIECE)
    held = experiment.read_device("a second context")
    code = program.call("cuda_reset_code")
    if code is None:
        raise CannotTell("no CUDA runtime library was found here, and the driver has no such call")
    back = held.used - experiment.read_device("reset with the second one current").used
    if back > PIECE // 2:
        because = f"it answered {code} and returned {size(back)}"
        return Conclusion(True, because, (figure("answer", code, "code"), figure("returned", back)))
    reset(program)
    later = held.used - experiment.read_device("reset with the primary one current").used
    because = (
        f"it answered {code} and returned {size(max(0, back))}; with the primary context current it returned"
        f" {size(max(0, later))}"
    )
    figures = (figure("answer", code, "code"), figure("returned", back), figure("returned later", later))
    return Conclusion(False if later >= PIECE else None, because, figures)


@claim("reset-green", TOPIC, takes=Takes(PIECE))
def reset_green(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset ends green contexts and returns their memory

    Source: Folklore.

    Method:
    A process makes a green context, a share of the GPU's multiprocessors, allocates 64 MiB in it, and resets
    the device. Then it destroys the green context and resets again.

    Reading:
    False means that the reset is refused while a green context lives. Memory in it belongs to the
    primary context, and returns with a reset after the green context was destroyed.
    """
    program = runtime_program(experiment)
    empty = experiment.read_device("context")
    green = program.call("green_context")
    program.call("alloc", PIECE)
    held = experiment.must_show("allocated", PIECE, since=empty)
    call, code = program.call("reset_code")
    kept = experiment.used("reset")
    program.call("destroy_green_context", green)
    again = program.call("reset_code")[1]
    left = experiment.used("destroyed, reset again")
    answer = judge(kept, experiment.grown(held), f"still used after {call} returned {code}", claimed=False)
    because = f"{answer.because}; without the green context it returned {again} and left {size(max(0, left))}"
    figures = (figure("answer", code, "code"), figure("still used", kept), figure("left at last", left))
    return Conclusion(answer.holds, because, figures)


@claim("reset-pinned", TOPIC, takes=Takes(PIECE))
def reset_pinned(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset leaves pinned host memory allocated

    Source: Folklore; question 4 names pinned memory as a cause of exhaustion.

    Method:
    A process pins 64 MiB of host memory and resets the device. Whether the memory is there is asked of the
    kernel (/proc/self/maps), before and after.

    Reading:
    False means that the reset frees pinned memory too: the pointer is invalid, and reading it would crash.
    """
    program = runtime_program(experiment)
    pointer = program.call("pin", PIECE)
    if not program.call("host_mapped", pointer):
        raise CannotTell("the pinned memory is in no mapping of the process")
    call = reset(program)
    experiment.read_device("reset")
    kept = program.call("host_mapped", pointer)
    because = f"after {call} the process still has it" if kept else f"{call} took it from the process"
    return Conclusion(kept, because, (figure("still mapped", PIECE if kept else 0),))


@claim("reset-reaches-others", TOPIC, takes=Takes(128 * MIB, contexts=2))
def reset_reaches_others(experiment: Experiment) -> Conclusion:
    """cudaDeviceReset releases what other processes hold

    Source: Folklore; question 5, which rightly says that no single function flushes the GPU.

    Method:
    One process holds 128 MiB. Another one makes a context and resets it.

    Reading:
    A reset ends a context of the process that calls it, and nothing else.
    """
    _, held = experiment.holder()
    other = runtime_program(experiment)
    experiment.read_device("the other's context")
    reset(other)
    kept = experiment.used("reset by the other")
    return judge(kept, held, "still held by the first process", claimed=False)

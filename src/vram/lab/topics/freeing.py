"""Claims: what freeing does, and what it does not."""

from __future__ import annotations

from vram.lab.claim import NEAR, OK, CannotTell, Conclusion, Takes, claim, figure, judge, mostly, of
from vram.lab.experiment import DeviceReading, Experiment
from vram.lab.worker import WorkerClient, WorkerEnded
from vram.units import GIB, KIB, MIB, size

TOPIC = "Freeing"


@claim("free-keeps", TOPIC, takes=Takes(256 * MIB))
def free_keeps(experiment: Experiment) -> Conclusion:
    """cudaFree keeps memory for reuse instead of returning it

    Source:
    Question 1: the driver is said to keep what was freed, for allocations to come, and tools to show it.

    Method:
    A process allocates 256 MiB with cuMemAlloc and frees them. What the device has in use is compared
    with what it had before the allocation.

    Reading:
    Plain allocations are returned at once. What keeps memory is a pool on top of them: stream-ordered
    memory, PyTorch, CuPy. See pool-keeps.
    """
    program, empty, pointer = experiment.allocator()
    program.call("free", pointer)
    return judge(experiment.used("freed", since=empty), experiment.nbytes, "still used after the free")


@claim("freed-for-others", TOPIC, takes=Takes(256 * MIB, contexts=2))
def freed_for_others(experiment: Experiment) -> Conclusion:
    """Freed memory stays unavailable to other processes until the driver reclaims it

    Source: Question 1: freed memory is said to be reserved, and lost to other processes, until the driver
    chooses to reclaim it.

    Method:
    Two processes have a context each. One allocates 256 MiB and frees them; the other asks the driver
    before, between and after how much is free for it.

    Reading:
    False means that what one process frees, another can have at once.
    """
    nbytes = experiment.nbytes
    program, other = experiment.worker(), experiment.worker()
    program.call("context")
    other.call("context")
    experiment.read_device("contexts")
    before = other.call("free_and_total")[0]
    pointer = program.call("alloc", nbytes)
    taken = before - other.call("free_and_total")[0]
    if taken < nbytes:
        raise CannotTell(f"the other process saw {size(taken)} of {size(nbytes)} taken")
    program.call("free", pointer)
    withheld = before - other.call("free_and_total")[0]
    return judge(withheld, nbytes, "not free for the other process after the free")


@claim("free-waits", TOPIC, takes=Takes(64 * MIB))
def free_waits(experiment: Experiment) -> Conclusion:
    """cudaFree waits for all work that was queued before it

    Source: Question 5: cudaFree is called synchronous; question 1: a release may be issued long before
    it is carried out.

    Method:
    Work of half a second is queued on a stream of its own: a host function, so that no kernel is
    needed. Then memory that the work does not touch is freed, and it is noted which came first: the
    end of the work, or the return of the free.

    Reading:
    True means that a free in the middle of a pipeline stalls it. Stream-ordered frees (cudaFreeAsync)
    do not wait.
    """
    return _free_behind_work(experiment, 0.5, 1, "the queued work was done")


def _free_behind_work(experiment: Experiment, work_s: float, streams: int, end: str) -> Conclusion:
    """Whether a free returns only when work on so many *streams* is done; *end* says what that is."""
    program = experiment.cuda_worker()
    pointer = program.call("alloc", experiment.nbytes)
    began, freed, worked = program.call("free_behind_work", pointer, work_s, streams)
    experiment.read_device("freed")
    if began > worked:
        raise CannotTell("the machine was too busy: the work was done before the free began")
    waited = freed >= worked
    because = f"the free took {freed - began:.2f} s and returned {'after' if waited else 'before'} {end}"
    return Conclusion(waited, because, (figure("the free took", round(freed - began, 4), "seconds"),))


@claim("sync-before-free", TOPIC, takes=Takes(256 * MIB))
def sync_before_free(experiment: Experiment) -> Conclusion:
    """cudaDeviceSynchronize before cudaFree releases more memory

    Source: Question 1: waiting for the device first is said to release memory sooner.

    Method:
    256 MiB are written by the device and freed without waiting; the device is read. The same again,
    with a synchronisation before the free. The two readings are compared.

    Reading:
    False means that the free by itself does all there is to do: it waits anyway (see free-waits).
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    hasty = program.call("alloc", nbytes)
    program.call("start_fill", hasty, nbytes)
    experiment.must_show("allocated", since=empty)
    program.call("free", hasty)
    without = experiment.used("freed", since=empty)
    patient = program.call("alloc", nbytes)
    program.call("start_fill", patient, nbytes)
    program.call("synchronize")
    program.call("free", patient)
    with_it = experiment.used("synchronised, freed", since=empty)
    answer = judge(without - with_it, nbytes, "came back only with the synchronisation")
    figures = (figure("left without it", without), figure("left with it", with_it))
    return Conclusion(answer.holds, answer.because, figures)


@claim("free-null-fails", TOPIC, takes=Takes())
def free_null_fails(experiment: Experiment) -> Conclusion:
    """cudaFree(0) is an error

    Source: Question 2: even calls that look harmless are said to fail.

    Method:
    A process calls cudaFree(0) first of all, and again. Where no CUDA runtime library is found, the driver's
    cuMemFree is called in a new context instead.

    Reading:
    False means that freeing nothing is no error by itself. As a first call it creates the context, and that
    takes time and memory. It can fail for other reasons: see free-null-never-fails.
    """
    program = experiment.worker()
    call, first = program.call("free_null_code")
    cost = experiment.used("freed null")
    _, second = program.call("free_null_code")
    because = (
        f"{call} of null returned {first}, then {second}, and the context that it made took {size(cost)}"
    )
    figures = (
        figure("first call", first, "code"),
        figure("second call", second, "code"),
        figure("took", cost),
    )
    return Conclusion((first, second) != (OK, OK), because, figures)


@claim("free-null-flushes", TOPIC, takes=Takes(128 * MIB))
def free_null_flushes(experiment: Experiment) -> Conclusion:
    """cudaFree(nullptr) flushes what is left of earlier allocations

    Source: Question 4, which shows the call and rightly doubts that it frees anything.

    Method:
    A process allocates 128 MiB and forgets them, then frees the null pointer. The device is read
    before and after.

    Reading:
    No call of CUDA flushes memory whose pointer is lost, except for resetting the device: see
    reset-primary.
    """
    program, held = experiment.holder()
    program.call("free_null_code")
    flushed = held - experiment.used("freed null")
    return judge(flushed, experiment.nbytes, "came back")


@claim("double-free", TOPIC, takes=Takes(2 * 2 * MIB))
def double_free(experiment: Experiment) -> Conclusion:
    """Freeing the same pointer twice breaks the process

    Source: Folklore, from the host's malloc.

    Method:
    A process frees 2 MiB twice, then allocates and writes again.

    Reading:
    The driver knows its pointers: it refuses the second free (1, invalid value) and the process goes
    on. Where the address was allocated again meanwhile, the second free takes another owner's memory:
    that is the real danger.
    """
    nbytes = 2 * MIB
    program = experiment.cuda_worker()
    pointer = program.call("alloc", nbytes)
    program.call("free", pointer)
    code = program.call("free_code", pointer)
    try:
        again = program.call("alloc", nbytes)
        program.call("fill", again, 0xA5, nbytes)
    except WorkerEnded:
        return Conclusion(True, "the process died of it")
    because = f"the second free returned {code}, and the process continued"
    return Conclusion(False, because, (figure("answer", code, "code"),))


@claim("lost-pointer", TOPIC, takes=Takes(2 * 128 * MIB))
def lost_pointer(experiment: Experiment) -> Conclusion:
    """The driver collects memory whose pointer was lost

    Source: Question 2, in which the driver pages and collects garbage; question 5 warns that losing the
    pointer frees nothing.

    Method:
    A process allocates 128 MiB, forgets the pointer and collects garbage. It synchronises, and
    allocates and frees something else, so that the driver has an opportunity to clean up.

    Reading:
    False means that device memory has no garbage collector: what has no owner stays until the context
    or the process goes.
    """
    nbytes = 128 * MIB
    program, empty = experiment.worker_with_context()
    program.call("alloc_and_forget", nbytes)
    experiment.must_show("lost", nbytes, since=empty)
    program.call("synchronize")
    program.call("free", program.call("alloc", nbytes))
    kept = experiment.used("opportunity to clean up", since=empty)
    return judge(kept, nbytes, "still used although nobody knows its pointer", claimed=False)


@claim("small-fragments", TOPIC, takes=Takes(64 * 512 * KIB))
def small_fragments(experiment: Experiment) -> Conclusion:
    """Freeing half of many small allocations returns half of the memory

    Source: Folklore; question 3 speaks of fragmentation by allocations that are left over.

    Method:
    A process makes 64 allocations of 512 KiB and frees every other one.

    Reading:
    The driver hands out 2 MiB at a time, and small allocations share them: one that stays keeps its
    whole block. This is fragmentation that no tool shows from outside.
    """
    half = experiment.nbytes // 2
    _, _, back = _free_every_other(experiment, pieces=64)
    because = f"{size(back)} of the {size(half)} that were freed came back"
    return Conclusion(mostly(back, half), because, (figure("came back", back), figure("freed", half)))


def _free_every_other(experiment: Experiment, pieces: int) -> tuple[WorkerClient, DeviceReading, int]:
    """Allocate all in so many *pieces* and free half: the worker, the device before that, what came back."""
    program, empty = experiment.worker_with_context()
    pointers = [program.call("alloc", experiment.nbytes // pieces) for _ in range(pieces)]
    whole = experiment.must_show("allocated", since=empty)
    for pointer in pointers[::2]:
        program.call("free", pointer)
    return program, whole, whole.used - experiment.read_device("every other one freed").used


@claim("large-fragments", TOPIC, takes=Takes(8 * 32 * MIB))
def large_fragments(experiment: Experiment) -> Conclusion:
    """Freeing every other large allocation leaves holes that stay used

    Source: Folklore; question 3 blames fragmentation for out-of-memory errors.

    Method:
    A process makes 8 allocations of 32 MiB, frees every other one, and then asks for one piece as
    large as all holes together. What the device has in use must end where it was.

    Reading:
    Device addresses are mapped to pages: holes of whole pages are returned, and a larger piece can be made
    of them. Fragmentation that hurts lies inside pools, which cut blocks themselves.
    """
    holes = experiment.nbytes // 2
    program, whole, back = _free_every_other(experiment, pieces=8)
    stayed = holes - back
    program.call("alloc", holes)
    more = experiment.used("holes taken as one", since=whole)
    because = f"{of(stayed, holes)} stayed used, and one piece in their place took {size(max(0, more))} more"
    figures = (figure("stayed used", stayed), figure("took more", more))
    return Conclusion(mostly(max(stayed, more), holes), because, figures)


@claim("release-frees", TOPIC, takes=Takes(128 * MIB))
def release_frees(experiment: Experiment) -> Conclusion:
    """cuMemRelease frees memory at once

    Source: Folklore of virtual memory management: expandable segments and growable vectors.

    Method:
    A process creates 128 MiB of physical memory, maps it, and releases the handle while it is mapped.
    Then it unmaps it.

    Reading:
    The mapping is a reference of its own: memory is freed with the last of handle, mapping and exported
    descriptor.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    handle, address = program.call("create", nbytes), program.call("reserve", nbytes)
    code = program.call("map_code", address, nbytes, handle)
    if code != OK:
        raise CannotTell(f"cuMemMap returned {code}")
    experiment.must_show("mapped", since=empty)
    program.call("release", handle)
    kept = experiment.used("released", since=empty)
    program.call("unmap", address, nbytes)
    left = experiment.used("unmapped", since=empty)
    answer = judge(kept, nbytes, "still used after the release", claimed=False)
    return answer.and_later(left, "after the unmap", after_the_release=kept, after_the_unmap=left)


@claim("addresses-cost", TOPIC, takes=Takes(NEAR))
def addresses_cost(experiment: Experiment) -> Conclusion:
    """Reserving device addresses costs device memory

    Source: Folklore: tools that reserve terabytes look alarming.

    Method:
    A process reserves 64 GiB of device addresses and puts nothing behind them.

    Reading:
    Addresses are numbers. Only memory that is mapped behind them counts.
    """
    nbytes = 64 * GIB
    program, empty = experiment.worker_with_context()
    program.call("reserve", nbytes)
    taken = experiment.used("reserved", since=empty)
    because = f"{size(max(0, taken))} taken for {size(nbytes)} of addresses"
    return Conclusion(taken > NEAR, because, (figure("taken", taken),))


@claim("pitched-keeps", TOPIC, takes=Takes(256 * MIB))
def pitched_keeps(experiment: Experiment) -> Conclusion:
    """Memory of cudaMallocPitch stays used after it is freed

    Source:
    Question 2, which names cudaMallocPitch among the calls whose memory the driver manages on its own.

    Method:
    A process allocates rows of 64 KiB, 256 MiB in all, with cuMemAllocPitch and frees them. What the device
    has in use is compared with what it had before the allocation.

    Reading:
    False means that it is plain memory: the call only chooses where each row begins. See free-keeps.
    """
    program, empty, pointer = experiment.allocator("alloc_pitched")
    program.call("free", pointer)
    return judge(experiment.used("freed", since=empty), experiment.nbytes, "still used after the free")


@claim("free-waits-for-streams", TOPIC, takes=Takes(64 * MIB))
def free_waits_for_streams(experiment: Experiment) -> Conclusion:
    """cudaFree waits for the work of every stream, not only of one

    Source: Question 5: cudaFree is called synchronous also where several streams are at work.

    Method:
    Work of a quarter of a second is queued on each of three streams. Then memory that none of them touches
    is freed, and it is noted which came first: the end of the last work, or the return of the free.

    Reading:
    True means that one free stalls every stream of the process. cudaFreeAsync waits for its own stream only.
    """
    return _free_behind_work(experiment, 0.25, 3, "the last of 3 streams was done")


@claim("failed-alloc-keeps", TOPIC, takes=Takes())
def failed_alloc_keeps(experiment: Experiment) -> Conclusion:
    """An allocation that fails leaves memory in use

    Source:
    Question 4, in whose program the exception comes from a cudaMalloc that failed, and is said to leave
    memory that must be freed.

    Method:
    A process asks for more memory than the GPU has, three times, and is refused. The device is read before
    and after.

    Reading:
    False means that there is nothing to free after a failed allocation.
    """
    attempts = 3
    if experiment.on_wsl:
        raise CannotTell("under WSL2 the driver may use host memory instead")
    program, empty = experiment.worker_with_context()
    codes = [program.call("alloc_code", empty.memory.total + GIB) for _ in range(attempts)]
    if OK in codes:
        raise CannotTell("the driver gave more memory than the GPU has")
    kept = experiment.used("refused", since=empty)
    because = f"{size(max(0, kept))} more in use after {attempts} refusals (cuMemAlloc returned {codes[0]})"
    return Conclusion(kept > NEAR, because, (figure("more in use", kept), figure("answer", codes[0], "code")))


@claim("failed-alloc-pointer", TOPIC, takes=Takes(64 * MIB))
def failed_alloc_pointer(experiment: Experiment) -> Conclusion:
    """The pointer of a cudaMalloc that failed can be freed without harm

    Source:
    Question 4, whose program declares the pointer without a value, and is told to free it when cudaMalloc
    has failed.

    Method:
    A process allocates 64 MiB. A variable that holds their address by chance, as one without a value may, is
    given to a cudaMalloc that asks for more than the GPU has. What the variable holds afterwards is freed,
    and the device is read.

    Reading:
    False means that the failed call left the variable as it was, and the free took memory that is still in
    use. True means that the call set it to null. Give a pointer a value before the call in any case: other
    calls that allocate may leave it.
    """
    nbytes = experiment.nbytes
    if experiment.on_wsl:
        raise CannotTell("under WSL2 the driver may use host memory instead")
    program, empty, pointer = experiment.allocator()
    refused = program.call("cuda_alloc_refused", pointer, empty.memory.total + GIB)
    if refused is None:
        raise CannotTell("no CUDA runtime library was found here")
    code, left_in_it = refused
    if code == OK:
        raise CannotTell("cudaMalloc gave more memory than the GPU has")
    call, freed = program.call("cuda_free_code", left_in_it)
    kept = experiment.used("freed", since=empty)
    value = (
        "the address of other memory" if left_in_it == pointer else "null" if not left_in_it else "another"
    )
    answer = judge(kept, nbytes, "of the other memory still in use")
    because = (
        f"cudaMalloc returned {code} and left {value} in the variable; {call} of that returned {freed}:"
        f" {answer.because}"
    )
    return Conclusion(answer.holds, because, (figure("answer", freed, "code"), figure("still in use", kept)))

"""Claims: figures and kernels."""

from __future__ import annotations

from vram.lab.claim import NEAR, OK, CannotTell, Conclusion, Takes, claim, figure, mostly
from vram.lab.experiment import Experiment
from vram.units import GIB, KIB, MIB, size

TOPIC = "Figures and kernels"


@claim("used-includes-reserved", TOPIC, takes=Takes(contexts=0))
def used_includes_reserved(experiment: Experiment) -> Conclusion:
    """What is used on an idle GPU includes what the driver reserves for itself

    Source: Folklore: nvidia-smi and older tools show some hundred MiB on a GPU that nobody uses.

    Method:
    Both versions of the driver's call are read: the older one, and the newer one, which reports what is
    reserved.

    Reading:
    True means that tools on the older call show the reserved part as used. It belongs to no process
    and cannot be freed.
    """
    memory = experiment.read_device("now").memory
    if memory.reserved is None or memory.v1_used is None:
        raise CannotTell("this driver does not report what it reserves")
    more, reserved = memory.v1_used - memory.used, memory.reserved
    because = f"the older call says {size(more)} more than the newer one; {size(reserved)} is reserved"
    holds = mostly(more, reserved) if reserved > NEAR else None
    return Conclusion(holds, because, (figure("more in the older call", more), figure("reserved", reserved)))


@claim("list-sums", TOPIC, takes=Takes(64 * MIB))
def list_sums(experiment: Experiment) -> Conclusion:
    """The sizes in the process list sum up to what is used

    Source: Folklore.

    Method:
    A process makes a context and allocates 64 MiB. What the device has in use more is compared with
    what the list charges.

    Reading:
    False means that some of every context is in no list. `vram why` gives it a line of its own.
    """
    exact = 64 * KIB
    program = experiment.cuda_worker()
    program.call("alloc", experiment.nbytes)
    reading = experiment.read_device("allocated")
    listed = reading.charges.get(program.pid)
    if listed is None:
        raise CannotTell("the driver's list does not use the pids that are valid here")
    used = experiment.grown(reading)
    because = f"{size(used)} more is used, {size(listed)} is listed"
    return Conclusion(abs(used - listed) <= exact, because, (figure("used", used), figure("listed", listed)))


@claim("one-byte", TOPIC, takes=Takes(MIB))
def one_byte(experiment: Experiment) -> Conclusion:
    """An allocation takes as much as was asked for

    Source: Folklore.

    Method:
    A process allocates one byte.

    Reading:
    The driver hands out blocks (2 MiB on current GPUs), shared by small allocations. Thousands of
    tiny ones in one process cost little more than their sum; one each in many processes cost a block
    each.
    """
    program, empty = experiment.worker_with_context()
    program.call("alloc", 1)
    taken = experiment.used("allocated", since=empty)
    if taken <= 0:
        raise CannotTell("the device showed no change: the context had room left")
    return Conclusion(taken == 1, f"one byte took {size(taken)}", (figure("taken", taken),))


@claim("larger-than-the-gpu", TOPIC, takes=Takes())
def larger_than_the_gpu(experiment: Experiment) -> Conclusion:
    """Plain device memory can be larger than the GPU: the driver pages it out

    Source: Question 2, in which the driver pages memory out to make room.

    Method:
    A process asks cuMemAlloc for more than the GPU has. Nothing is written, and what would be given
    is freed at once.

    Reading:
    False on Linux: only managed memory may exceed the device. On Windows and WSL2 the driver may fall
    back to the host's memory, so there it is not tried.
    """
    out_of_memory = 2
    if experiment.on_wsl:
        raise CannotTell("under WSL2 the driver may use host memory instead")
    program = experiment.cuda_worker()
    total = experiment.read_device("context").memory.total
    code = program.call("alloc_code", total + GIB)
    experiment.read_device("asked")
    if code not in (OK, out_of_memory):
        raise CannotTell(f"cuMemAlloc returned {code}")
    because = f"asked for {size(total + GIB)} on a GPU of {size(total)}, cuMemAlloc returned {code}"
    return Conclusion(code == OK, because, (figure("answer", code, "code"),))


@claim("kernel-keeps", TOPIC, takes=Takes(1 * GIB + 2 * MIB))
def kernel_keeps(experiment: Experiment) -> Conclusion:
    """Memory that a kernel needed stays allocated after the kernel has finished

    Source: Question 1: what a kernel was given is said to stay allocated when it has run.

    Method:
    A kernel of one thread with 3 KiB of local memory is launched and waited for. The driver sets
    local memory aside for every thread that could run at once, which is far more.

    Reading:
    True means that a single launch can grow a context for good. It is part of the context and goes
    with it.
    """
    program = experiment.cuda_worker()
    program.call("load_kernels")
    out = program.call("alloc", 2 * MIB)
    program.call("launch_empty", 1)
    empty = experiment.read_device("an empty kernel ran")
    program.call("launch_deep", out)
    kept = experiment.used("a deep kernel ran", since=empty)
    because = f"{size(max(0, kept))} more in use after it finished"
    return Conclusion(kept > NEAR, because, (figure("in use after it finished", kept),))


@claim("launches-grow", TOPIC, takes=Takes(64 * MIB))
def launches_grow(experiment: Experiment) -> Conclusion:
    """Launching kernels again and again uses up device memory

    Source: Question 1: launching kernels over and over is said to eat memory up.

    Method:
    An empty kernel is launched once; the device is read. It is launched 2000 times more and waited
    for.

    Reading:
    False means that launches by themselves keep nothing. What grows is allocated by the program or
    its libraries between them. An empty kernel needs no memory: for one that does see deep-launches-grow.
    """
    launches = 2000
    program = experiment.cuda_worker()
    program.call("load_kernels")
    program.call("launch_empty", 1)
    first = experiment.read_device("one launch")
    program.call("launch_empty", launches)
    more = experiment.used("many launches", since=first)
    because = f"{size(max(0, more))} more in use after {launches} launches"
    return Conclusion(more > NEAR, because, (figure("more in use", more),))


@claim("deep-launches-grow", TOPIC, takes=Takes(1 * GIB + 2 * MIB))
def deep_launches_grow(experiment: Experiment) -> Conclusion:
    """Each launch of a kernel that needs memory takes more device memory

    Source: Question 1: launching kernels over and over is said to eat memory up.

    Method:
    A kernel with 3 KiB of local memory, which writes to it and to memory of the program, is launched once;
    the device is read. It is launched 2000 times more and waited for.

    Reading:
    False means that the driver sets local memory aside once, at the first launch (see kernel-keeps), and uses
    it for every later one.
    """
    launches = 2000
    program = experiment.cuda_worker()
    program.call("load_kernels")
    out = program.call("alloc", 2 * MIB)
    before = experiment.read_device("kernels loaded")
    program.call("launch_deep", out)
    first = experiment.read_device("one launch")
    program.call("launch_deep", out, launches)
    more = experiment.used("many launches", since=first)
    because = (
        f"the first launch took {size(max(0, first.used - before.used))}, and {launches} more launches"
        f" {size(max(0, more))}"
    )
    return Conclusion(more > NEAR, because, (figure("taken by later launches", more),))


HEAP, PIECE = 16 * MIB, 12 * MIB


@claim("kernel-malloc", TOPIC, takes=Takes(2 * MIB + 256 * MIB))
def kernel_malloc(experiment: Experiment) -> Conclusion:
    """What a kernel allocates with malloc stays allocated when the kernel has finished

    Source: Question 2, in which memory is allocated by calls of the host, and not for each thread of the GPU.

    Method:
    The heap of malloc in kernels is limited to 16 MiB. A kernel of one thread allocates 12 MiB with malloc
    and ends. Another one asks for as much again: if it is refused, the first 12 MiB are still taken. Then a
    third one frees them, and a fourth asks again, which must be granted.

    Reading:
    True means that threads of the GPU allocate memory themselves, and that it outlives their kernel until a
    kernel frees it or the context ends. From outside only the heap shows, as a part of the context.
    """
    program = experiment.cuda_worker()
    program.call("load_malloc", HEAP)
    out = program.call("alloc", 2 * MIB)
    before = experiment.read_device("kernels loaded")
    first = program.call("kernel_malloc", out, PIECE)
    heap = experiment.used("a kernel called malloc", since=before)
    second = program.call("kernel_malloc", out, PIECE)
    if not first:
        raise CannotTell(f"malloc in a kernel did not give {size(PIECE)}")
    program.call("kernel_free", first)
    if not second and not program.call("kernel_malloc", out, PIECE):
        raise CannotTell("malloc in a kernel gave nothing after the free either")
    because = (
        f"the heap took {size(max(0, heap))}; a second kernel was {'given' if second else 'refused'}"
        f" {size(PIECE)} of {size(HEAP)} after the first had ended without a free"
    )
    return Conclusion(not second, because, (figure("heap", heap),))

"""Claims: host and managed memory."""

from __future__ import annotations

from vram.lab.claim import NEAR, OK, CannotTell, Conclusion, Takes, claim, figure, judge
from vram.lab.experiment import Experiment
from vram.units import GIB, MIB, size

TOPIC = "Host and managed memory"

HOST, DEVICE = -1, 0
NOTHING_MOVES = "on a virtual GPU nothing is moved, so there is no time to compare"


@claim("pinned-counts", TOPIC, takes=Takes(256 * MIB))
def pinned_counts(experiment: Experiment) -> Conclusion:
    """Pinned host memory uses up device memory

    Source: Question 4: pinned memory that is badly managed is said to help exhaust the device.

    Method:
    A process pins 256 MiB of host memory.

    Reading:
    False means that pinned memory is the host's alone. It can exhaust the host, and BAR1 is another
    matter.
    """
    program, empty = experiment.worker_with_context()
    program.call("pin", experiment.nbytes)
    taken = experiment.used("pinned", since=empty)
    return judge(taken, experiment.nbytes, "of device memory taken")


@claim("managed-on-allocation", TOPIC, takes=Takes(256 * MIB))
def managed_on_allocation(experiment: Experiment) -> Conclusion:
    """Managed memory takes device memory as soon as it is allocated

    Source: Folklore.

    Method:
    A process allocates 256 MiB of managed memory; the device is read. Then the device writes to them,
    and it is read again.

    Reading:
    Managed memory goes where it is touched. Until the device touches it, it costs the device nothing.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    untouched = experiment.used("allocated", since=empty)
    program.call("fill", pointer, 0xA5, nbytes)
    touched = experiment.used("written by the device", since=empty)
    answer = judge(untouched, nbytes, "used when it was allocated")
    return answer.and_later(
        touched, "when the device had written to it", allocated=untouched, written=touched
    )


@claim("managed-returns", TOPIC, takes=Takes(256 * MIB))
def managed_returns(experiment: Experiment) -> Conclusion:
    """Managed memory leaves the device by itself when the host uses it again

    Source: Question 1: the driver is said to move managed data to and fro as it is needed.

    Method:
    256 MiB of managed memory are written by the device, then all of them by the host.

    Reading:
    False means that the data move and the device's pages stay allocated: they are returned by the
    free.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    experiment.must_show("written by the device", since=empty)
    program.call("host_fill", pointer, 0x5A, nbytes)
    kept = experiment.used("written by the host", since=empty)
    return judge(kept, nbytes, "still used after the host wrote to all of it", claimed=False)


@claim("managed-listed", TOPIC, takes=Takes(256 * MIB))
def managed_listed(experiment: Experiment) -> Conclusion:
    """The process list charges a process with its managed memory

    Source: Folklore.

    Method:
    256 MiB of managed memory are written by the device. What the device has in use more is compared
    with what the list charges more.

    Reading:
    False means that this memory is used, and in no list: `vram why` finds its owner through its
    mappings.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    if program.pid not in empty.charges:
        raise CannotTell("the driver's list does not use the pids that are valid here")
    program.call("fill", program.call("alloc_managed", nbytes), 0xA5, nbytes)
    reading = experiment.must_show("written by the device", since=empty)
    charged = reading.charges.get(program.pid, 0) - empty.charges[program.pid]
    return judge(charged, nbytes, "more in the list")


@claim("managed-first-touch", TOPIC, takes=Takes(256 * MIB))
def managed_first_touch(experiment: Experiment) -> Conclusion:
    """Managed memory that only the host has written to takes device memory

    Source: Questions 1 and 2, which speak of memory that both sides share.

    Method:
    A process allocates 256 MiB of managed memory, and the host writes to all of it.

    Reading:
    False means that managed memory is where it is touched: until the device uses it, it is host memory.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    program.call("host_fill", program.call("alloc_managed", nbytes), 0x5A, nbytes)
    taken = experiment.used("written by the host", since=empty)
    return judge(taken, nbytes, "used after the host wrote to all of it")


@claim("managed-prefetch", TOPIC, takes=Takes(256 * MIB))
def managed_prefetch(experiment: Experiment) -> Conclusion:
    """Prefetched managed memory takes as much device memory as plain memory, until it is freed

    Source: Question 1, which says that managed memory is released when it is freed.

    Method:
    256 MiB of managed memory, written by the host, are prefetched to the device. Then they are freed.

    Reading:
    True means that a prefetch is an allocation on the device in all but name, and cudaFree its end.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    program.call("host_fill", pointer, 0x5A, nbytes)
    program.call("prefetch", pointer, nbytes, DEVICE)
    taken = experiment.used("prefetched", since=empty)
    program.call("free", pointer)
    left = experiment.used("freed", since=empty)
    there = judge(taken, nbytes, "used after the prefetch")
    gone = judge(left, nbytes, "used after the free", claimed=False)
    holds = None if None in (there.holds, gone.holds) else bool(there.holds and gone.holds)
    because = f"{there.because}, {size(max(0, left))} after the free"
    return Conclusion(holds, because, (figure("prefetched", taken), figure("freed", left)))


@claim("managed-pieces", TOPIC, takes=Takes(256 * MIB))
def managed_pieces(experiment: Experiment) -> Conclusion:
    """Managed memory takes no more of the device than the device has written

    Source: Folklore; question 1 says that managed memory is released when it is freed.

    Method:
    The device writes to 4 MiB of managed memory. Then they are freed.

    Reading:
    False means that the driver takes device memory for managed memory in large pieces. A free returns what
    was written; the rest of the piece stays for the next managed memory, of any process, until the last
    process has ended that uses the GPU. It is in no process list.
    """
    nbytes = 4 * MIB
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    taken = experiment.used("written by the device", since=empty)
    if taken <= 0 and experiment.before.charges:
        raise CannotTell("other processes use the GPU, and a piece that they left was enough")
    program.call("free", pointer)
    left = experiment.used("freed", since=empty)
    because = f"{size(max(0, taken))} taken for {size(nbytes)}, and {size(max(0, left))} left after the free"
    return Conclusion(taken <= nbytes + NEAR, because, (figure("taken", taken), figure("freed", left)))


@claim("managed-outlives", TOPIC, takes=Takes(512 * MIB, contexts=2))
def managed_outlives(experiment: Experiment) -> Conclusion:
    """Device memory taken for managed memory stays in use after its process has ended

    Source:
    Question 2, in which the driver handles managed memory beyond the life of a process; question 1, in which
    it is released when the program ends.

    Method:
    A process makes a context and stays. Beside it, one after the other, three processes let the device write
    to 4, 64 and 200 MiB of managed memory, and end. The device is read after each, and again when the first
    process has ended too.

    Reading:
    True means that the driver keeps a reserve for managed memory, of any process, as long as one lives that
    uses CUDA: see managed-pieces. `vram why` names it (VR408). The last process takes it with it: see
    managed-at-exit.
    """
    if experiment.before.charges:
        raise CannotTell("other processes use the GPU, and what stays would stay with them")
    other = experiment.cuda_worker()
    before = experiment.read_device("a process stays")
    stayed: dict[int, int] = {}
    for nbytes in (4 * MIB, 64 * MIB, 200 * MIB):
        program, empty = experiment.worker_with_context()
        program.call("fill", program.call("alloc_managed", nbytes), 0xA5, nbytes)
        taken = experiment.used(f"{size(nbytes)} written", since=empty)
        if not stayed and taken < nbytes:
            raise CannotTell(f"the device showed {size(max(0, taken))} of {size(nbytes)} that it wrote to")
        program.end_by("leave")
        stayed[nbytes] = experiment.used(f"{size(nbytes)}: its process has ended", since=before)
    other.end_by("leave")
    left = experiment.used("the other process has ended")
    told = ", ".join(size(max(0, nbytes)) for nbytes in stayed.values())
    because = (
        f"after the processes with {', '.join(map(size, stayed))} had ended, {told} were still used;"
        f" {size(max(0, left))} when the other process had ended too"
    )
    figures = (
        *(figure(f"left after {size(nbytes)}", after) for nbytes, after in stayed.items()),
        figure("the other process has ended", left),
    )
    return Conclusion(any(nbytes > NEAR for nbytes in stayed.values()), because, figures)


@claim("managed-prefetch-back", TOPIC, takes=Takes(256 * MIB))
def managed_prefetch_back(experiment: Experiment) -> Conclusion:
    """Prefetching managed memory to the host returns its device memory

    Source: Folklore; question 1 has the driver move managed data to and fro.

    Method:
    256 MiB of managed memory are prefetched to the device, and then to the host.

    Reading:
    False means that the data move and the device's pages stay in use: only a free returns them. See
    managed-returns, where the host's own access has the same result.
    """
    nbytes = experiment.nbytes
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    program.call("prefetch", pointer, nbytes, DEVICE)
    experiment.must_show("on the device", since=empty)
    program.call("prefetch", pointer, nbytes, HOST)
    kept = experiment.used("on the host", since=empty)
    return judge(kept, nbytes, "still used after the prefetch to the host", claimed=False)


@claim("managed-larger-than-gpu", TOPIC, takes=Takes())
def managed_larger_than_gpu(experiment: Experiment) -> Conclusion:
    """Managed memory can be larger than the GPU

    Source: Question 2, in which the driver pages memory out to make room.

    Method:
    A process asks for more managed memory than the GPU has, and frees it again. Nothing is written to it: to
    use so much would take memory from every other program on the GPU.

    Reading:
    True means that managed memory may oversubscribe the device: pages that do not fit stay with the host or
    move there, at the price of time. Plain memory may not: see larger-than-the-gpu.
    """
    if experiment.on_wsl:
        raise CannotTell("under WSL2 managed memory cannot exceed the device")
    program, empty = experiment.worker_with_context()
    total = empty.memory.total
    code = program.call("alloc_managed_code", total + GIB)
    experiment.read_device("asked")
    because = f"asked for {size(total + GIB)} on a GPU of {size(total)}, cuMemAllocManaged returned {code}"
    return Conclusion(code == OK, because, (figure("answer", code, "code"),))


@claim("managed-slower", TOPIC, takes=Takes(3 * 256 * MIB))
def managed_slower(experiment: Experiment) -> Conclusion:
    """Bringing managed memory to the GPU takes longer than a copy

    Source: Question 1, which warns that managed memory may cost time.

    Method:
    256 MiB of managed memory, written by the host, are prefetched to the device. The same amount is copied to
    plain memory with cuMemcpyHtoD, from ordinary and from pinned host memory. It counts as longer
    where it takes half as long again as the copy from ordinary memory.

    Reading:
    False means that a prefetch costs no more than the copy that it replaces. Without a prefetch, kernels
    wait for page after page: see managed-faults.
    """
    nbytes = 256 * MIB
    longer = 1.5
    if experiment.on_virtual_gpu:
        raise CannotTell(NOTHING_MOVES)
    program, _ = experiment.worker_with_context()
    managed, plain = program.call("alloc_managed", nbytes), program.call("alloc", nbytes)
    program.call("host_fill", managed, 0x5A, nbytes)
    prefetch = program.call("prefetch_s", managed, nbytes, DEVICE)
    pageable = program.call("copy_in_s", plain, nbytes, False)
    pinned = program.call("copy_in_s", plain, nbytes, True)
    experiment.read_device("moved")
    because = (
        f"the prefetch of {size(nbytes)} took {_ms(prefetch)}, a copy {_ms(pageable)}, a copy from pinned"
        f" memory {_ms(pinned)}"
    )
    figures = (
        figure("prefetch", prefetch, "seconds"),
        figure("copy", pageable, "seconds"),
        figure("copy from pinned memory", pinned, "seconds"),
    )
    return Conclusion(prefetch > longer * pageable, because, figures)


@claim("managed-faults", TOPIC, takes=Takes(2 * 256 * MIB))
def managed_faults(experiment: Experiment) -> Conclusion:
    """Kernels use managed memory as fast as if it had been prefetched

    Source: Question 1, which has the driver move managed data as it is needed.

    Method:
    The host writes to 256 MiB of managed memory, and a kernel reads and writes one word of every page of
    4 KiB. The same again with a prefetch before the kernel: both together are timed.

    Reading:
    False means that pages which kernels fault in one by one cost several times what a prefetch does.
    """
    nbytes = 256 * MIB
    if experiment.on_virtual_gpu:
        raise CannotTell(NOTHING_MOVES)
    program, _ = experiment.worker_with_context()
    program.call("load_kernels")
    program.call("launch_empty", 1)
    pointers = [program.call("alloc_managed", nbytes) for _ in range(2)]
    for pointer in pointers:
        program.call("host_fill", pointer, 0x5A, nbytes)
    faults = program.call("touch_s", pointers[0], nbytes)
    prefetch = program.call("prefetch_s", pointers[1], nbytes, DEVICE)
    together = prefetch + program.call("touch_s", pointers[1], nbytes)
    experiment.read_device("touched")
    because = f"the kernel alone took {_ms(faults)}, a prefetch and the kernel {_ms(together)}"
    figures = (figure("by faults", faults, "seconds"), figure("prefetched", together, "seconds"))
    return Conclusion(faults <= 1.5 * together, because, figures)


@claim("managed-both-sides", TOPIC, takes=Takes(64 * MIB))
def managed_both_sides(experiment: Experiment) -> Conclusion:
    """Managed memory is written by the device and read by the host without a copy

    Source: Questions 1 and 2, of the one pointer that serves both.

    Method:
    The device writes to 64 MiB of managed memory and the host reads them through the same pointer; then
    the host writes and the device's memory is read back. Bytes that arrived are counted.

    Reading:
    True, if the host waits for the device first. The convenience is paid for in page faults: see
    managed-on-allocation for where the memory is.
    """
    nbytes = experiment.nbytes
    program = experiment.cuda_worker()
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    to_host = program.call("host_count", pointer, 0xA5, nbytes)
    program.call("host_fill", pointer, 0x5A, nbytes)
    to_device = program.call("count_byte", pointer, 0x5A, nbytes)
    experiment.read_device("written and read by both")
    because = f"{to_host} of {nbytes} bytes arrived at the host, {to_device} at the device"
    figures = (figure("at the host", to_host, "count"), figure("at the device", to_device, "count"))
    return Conclusion(to_host == to_device == nbytes, because, figures)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"

"""Claims: host and managed memory."""

from __future__ import annotations

from vram.lab.claim import CannotTell, Conclusion, Takes, claim, figure, judged
from vram.lab.experiment import Experiment
from vram.units import MIB, size

TOPIC = "Host and managed memory"


@claim("pinned-counts", TOPIC, takes=Takes(256 * MIB))
def pinned_counts(experiment: Experiment) -> Conclusion:
    """Pinned host memory uses up device memory

    Source
    ------
    Question 4: pinned memory that is badly managed is said to help exhaust the device.

    Method
    ------
    A process pins 256 MiB of host memory.

    Reading
    -------
    False means that pinned memory is the host's alone. It can exhaust the host, and BAR1 is another
    matter.
    """
    nbytes = 256 * MIB
    program, empty = experiment.worker_with_context()
    program.call("pin", nbytes)
    taken = experiment.read_device("pinned").used - empty.used
    return judged(taken, nbytes, "of device memory taken")


@claim("managed-on-allocation", TOPIC, takes=Takes(256 * MIB))
def managed_on_allocation(experiment: Experiment) -> Conclusion:
    """Managed memory takes device memory as soon as it is allocated

    Source
    ------
    Folklore.

    Method
    ------
    A process allocates 256 MiB of managed memory; the device is read. Then the device writes to them,
    and it is read again.

    Reading
    -------
    Managed memory goes where it is touched. Until the device touches it, it costs the device nothing.
    """
    nbytes = 256 * MIB
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    untouched = experiment.read_device("allocated").used - empty.used
    program.call("fill", pointer, 0xA5, nbytes)
    touched = experiment.read_device("written by the device").used - empty.used
    answer = judged(untouched, nbytes, "used when it was allocated")
    because = f"{answer.because}, {size(max(0, touched))} when the device had written to it"
    return Conclusion(answer.holds, because, (figure("allocated", untouched), figure("written", touched)))


@claim("managed-returns", TOPIC, takes=Takes(256 * MIB))
def managed_returns(experiment: Experiment) -> Conclusion:
    """Managed memory leaves the device by itself when the host uses it again

    Source
    ------
    Question 1: the driver is said to move managed data to and fro as it is needed.

    Method
    ------
    256 MiB of managed memory are written by the device, then all of them by the host.

    Reading
    -------
    False means that the data move and the device's pages stay allocated: they are returned by the
    free.
    """
    nbytes = 256 * MIB
    program, empty = experiment.worker_with_context()
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    experiment.must_show(experiment.read_device("written by the device"), nbytes, since=empty)
    program.call("host_fill", pointer, 0x5A, nbytes)
    kept = experiment.read_device("written by the host").used - empty.used
    return judged(kept, nbytes, "still used after the host wrote to all of it", claimed=False)


@claim("managed-listed", TOPIC, takes=Takes(256 * MIB))
def managed_listed(experiment: Experiment) -> Conclusion:
    """The process list charges a process with its managed memory

    Source
    ------
    Folklore.

    Method
    ------
    256 MiB of managed memory are written by the device. What the device has in use more is compared
    with what the list charges more.

    Reading
    -------
    False means that this memory is used, and in no list: `vram why` finds its owner through its
    mappings.
    """
    nbytes = 256 * MIB
    program, empty = experiment.worker_with_context()
    if program.pid not in empty.charges:
        raise CannotTell("the driver's list does not use the pids that are valid here")
    program.call("fill", program.call("alloc_managed", nbytes), 0xA5, nbytes)
    reading = experiment.read_device("written by the device")
    experiment.must_show(reading, nbytes, since=empty)
    charged = reading.charges.get(program.pid, 0) - empty.charges[program.pid]
    return judged(charged, nbytes, "more in the list")


@claim("managed-both-sides", TOPIC, takes=Takes(64 * MIB))
def managed_both_sides(experiment: Experiment) -> Conclusion:
    """Managed memory is written by the device and read by the host without a copy

    Source
    ------
    Questions 1 and 2, of the one pointer that serves both.

    Method
    ------
    The device writes to 64 MiB of managed memory and the host reads them through the same pointer; then
    the host writes and the device's memory is read back. Bytes that arrived are counted.

    Reading
    -------
    True, if the host waits for the device first. The convenience is paid for in page faults: see
    managed-on-allocation for where the memory is.
    """
    nbytes = 64 * MIB
    program = experiment.worker()
    program.call("context")
    pointer = program.call("alloc_managed", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    to_host = program.call("host_count", pointer, 0xA5, nbytes)
    program.call("host_fill", pointer, 0x5A, nbytes)
    to_device = program.call("count_byte", pointer, 0x5A, nbytes)
    experiment.read_device("written and read by both")
    because = f"{to_host} of {nbytes} bytes arrived at the host, {to_device} at the device"
    figures = (figure("at the host", to_host, "count"), figure("at the device", to_device, "count"))
    return Conclusion(to_host == to_device == nbytes, because, figures)

"""Claims: memory that is shared."""

from __future__ import annotations

from vram.lab.claim import OK, CannotTell, Conclusion, Takes, claim, figure, judge, mostly, of
from vram.lab.experiment import Experiment
from vram.units import MIB

TOPIC = "Memory that is shared"


@claim("ipc-survives", TOPIC, takes=Takes(256 * MIB, contexts=2))
def ipc_survives(experiment: Experiment) -> Conclusion:
    """Memory opened by IPC survives the process that allocated it

    Source: Folklore.

    Method:
    A process allocates 256 MiB and makes an IPC handle. Another opens it. The first is killed, and
    the device is read.

    Reading:
    Every process that opened the handle keeps the memory. It goes when the last of them closes it.
    """
    importer, exporter = experiment.worker(), experiment.worker()
    importer.call("context")
    base = experiment.read_device("importer's context")
    exporter.call("context")
    importer.call("ipc_open", exporter.call("ipc_handle", exporter.call("alloc", experiment.nbytes)))
    experiment.must_show("opened", since=base)
    exporter.kill()
    kept = experiment.used("exporter killed", since=base)
    return judge(kept, experiment.nbytes, "still used after the exporter was killed")


@claim("ipc-counted-twice", TOPIC, takes=Takes(256 * MIB, contexts=2))
def ipc_counted_twice(experiment: Experiment) -> Conclusion:
    """Memory shared by IPC is counted twice

    Source: Folklore: the sums of process lists look too large wherever processes share memory.

    Method:
    A process allocates 256 MiB and makes an IPC handle, another opens it. What the device has in use
    more, and what the driver's list charges the importer more, is read before and after.

    Reading:
    False means that the importer pays nothing while the exporter lives. It takes the whole charge
    over when the exporter ends.
    """
    nbytes = experiment.nbytes
    importer, exporter = experiment.worker(), experiment.worker()
    importer.call("context")
    exporter.call("context")
    handle = exporter.call("ipc_handle", exporter.call("alloc", nbytes))
    before = experiment.read_device("allocated")
    if importer.pid not in before.charges:
        raise CannotTell("the driver's list does not use the pids that are valid here")
    importer.call("ipc_open", handle)
    after = experiment.read_device("opened")
    used = after.used - before.used
    charged = after.charges.get(importer.pid, 0) - before.charges[importer.pid]
    because = f"opening it took {of(used, nbytes)} and charged the importer {of(charged, nbytes)}"
    figures = (figure("used more", used), figure("charged to the importer", charged))
    return Conclusion(mostly(max(used, charged), nbytes), because, figures)


@claim("exported-handle", TOPIC, takes=Takes(256 * MIB))
def exported_handle(experiment: Experiment) -> Conclusion:
    """GPU memory can be in use while no process at all uses CUDA

    Source: Questions 2 and 4, which ask about memory in use that belongs to no process.

    Method:
    A process exports a 256 MiB allocation as a file descriptor to one that never loads CUDA, and is
    killed. The device is read, and so is the process list.

    Reading:
    True, and a process does keep the memory: it holds a descriptor of /dev/nvidiactl, which no
    list shows. `vram why` finds it.
    """
    allocator = experiment.worker()
    holder = allocator.fork()
    allocator.call("context")
    holder.receive(allocator.call("export", allocator.call("create", experiment.nbytes)))
    allocator.kill()
    return _used_and_unlisted(experiment, experiment.nbytes, {allocator.pid, holder.pid})


@claim("dmabuf", TOPIC, takes=Takes(256 * MIB))
def dmabuf(experiment: Experiment) -> Conclusion:
    """A dma-buf keeps GPU memory that no process list names

    Source: Folklore of RDMA and video: buffers shared with other devices.

    Method:
    A process makes a dma-buf of 256 MiB, passes its descriptor to one that never loads CUDA, and is
    killed.

    Reading:
    The descriptor's fdinfo shows its size on kernels that support it. `vram why` names the holder.
    """
    nbytes = experiment.nbytes
    allocator = experiment.worker()
    holder = allocator.fork()
    allocator.call("context")
    holder.receive(allocator.call("dmabuf", allocator.call("alloc", nbytes), nbytes))
    allocator.kill()
    return _used_and_unlisted(experiment, nbytes, {allocator.pid, holder.pid})


def _used_and_unlisted(experiment: Experiment, nbytes: int, pids: set[int]) -> Conclusion:
    """Conclude on a claim that *nbytes* stay in use and no list names any of *pids*."""
    reading = experiment.read_device("allocator killed")
    listed = pids & set(reading.charges)
    text = f"still used, {'listed' if listed else 'and no list names anybody'}"
    answer = judge(experiment.grown(reading), nbytes, text)
    return Conclusion(False if listed else answer.holds, answer.because, answer.figures)


@claim("pointer-elsewhere", TOPIC, takes=Takes(2 * MIB, contexts=2))
def pointer_elsewhere(experiment: Experiment) -> Conclusion:
    """A device pointer works in every process on the GPU

    Source: Question 2: allocations are said to lie in one global memory that every kernel on the GPU reaches,
    from whatever process.

    Method:
    A process allocates 2 MiB. Another one, with a context of its own, asks the driver to copy from
    that address.

    Reading:
    Each process has a device address space of its own. Memory is shared by IPC handles and exported
    descriptors, not by addresses. The two processes may by chance have memory at the same address:
    the second one allocates nothing here.
    """
    owner, stranger = experiment.worker(), experiment.worker()
    owner.call("context")
    pointer = owner.call("alloc", experiment.nbytes)
    if owner.call("read_code", pointer, 4096) != OK:
        raise CannotTell("not even the owner can read its memory")
    stranger.call("context")
    code = stranger.call("read_code", pointer, 4096)
    words = "could read it" if code == OK else "was refused"
    because = f"another process {words}: cuMemcpyDtoH there returned {code}"
    return Conclusion(code == OK, because, (figure("answer", code, "code"),))


@claim("ipc-contents", TOPIC, takes=Takes(64 * MIB, contexts=2))
def ipc_contents(experiment: Experiment) -> Conclusion:
    """Data in memory opened by IPC can be read after the process that wrote them has ended

    Source: Question 2: data are said to outlast the process that wrote them.

    Method:
    A process fills 64 MiB with a pattern and makes an IPC handle. Another opens it. The first is killed, and
    the second counts bytes of the pattern.

    Reading:
    True, as long as the second process holds the memory. Where nobody does, the data are gone: see
    old-data-across.
    """
    nbytes = experiment.nbytes
    importer, exporter = experiment.worker(), experiment.worker()
    importer.call("context")
    exporter.call("context")
    pointer = exporter.call("alloc", nbytes)
    exporter.call("fill", pointer, 0xA5, nbytes)
    opened = importer.call("ipc_open", exporter.call("ipc_handle", pointer))
    exporter.kill()
    found = importer.call("count_byte", opened, 0xA5, nbytes)
    experiment.read_device("exporter killed")
    because = f"{found} of {nbytes} bytes could be read after their writer was killed"
    return Conclusion(found == nbytes, because, (figure("bytes that could be read", found, "count"),))

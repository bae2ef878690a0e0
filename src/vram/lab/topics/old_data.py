"""Claims: who can read what was in freed memory."""

from __future__ import annotations

from vram.lab.claim import CannotTell, Conclusion, Takes, claim, figure
from vram.lab.experiment import Experiment
from vram.units import KIB, MIB, size

TOPIC = "Old data"

# Up to 1 MiB, pieces share pages of 2 MiB; larger ones have pages of their own.
PIECES = (256, 4 * KIB, 64 * KIB, 512 * KIB, MIB, 3 * MIB // 2, 2 * MIB)


@claim("old-data-plain", TOPIC, takes=Takes(64 * MIB))
def old_data_plain(experiment: Experiment) -> Conclusion:
    """A fresh allocation shows the old bytes of one that was freed

    Source: Question 5, which zeroes sensitive data before the free.

    Method:
    A process fills 64 MiB with a pattern, reads it back to be sure, frees it, allocates as much again
    and counts bytes that are not zero.

    Reading:
    False says that none of these bytes were found on this GPU, driver and mode. It is no promise that
    memory is wiped. Small pieces and pools are another matter: see old-data-small and old-data-pool.
    """
    nbytes = experiment.nbytes
    program = experiment.cuda_worker()
    pointer = program.call("alloc", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    if program.call("count_byte", pointer, 0xA5, nbytes) != nbytes:
        raise CannotTell("the pattern could not be read back even before the free")
    program.call("free", pointer)
    found = program.call("count_nonzero", program.call("alloc", nbytes), nbytes)
    experiment.read_device("read")
    because = f"{found} of {nbytes} bytes were not zero"
    return Conclusion(found > 0, because, (figure("bytes that were not zero", found, "count"),))


@claim("old-data-small", TOPIC, takes=Takes(8 * MIB))
def old_data_small(experiment: Experiment) -> Conclusion:
    """A small piece of plain memory shows the old bytes of one that was freed

    Source: Question 5, which zeroes sensitive data before the free.

    Method:
    A process allocates a piece of 256 B, 4 KiB, 64 KiB, 512 KiB, 1 MiB, 1.5 MiB or 2 MiB, fills it with a
    pattern, reads it back, frees it, allocates as much again and counts bytes of the pattern. Then the same
    beside 256 bytes that stay allocated.

    Reading:
    True: erase what is secret before you free it, also where cudaMalloc and cudaFree are used. Small pieces
    share pages of 2 MiB, and a page with a living piece goes on being used as it is.
    """
    program = experiment.cuda_worker()

    def old_bytes(nbytes: int) -> int:
        pointer = program.call("alloc", nbytes)
        program.call("fill", pointer, 0xA5, nbytes)
        if program.call("count_byte", pointer, 0xA5, nbytes) != nbytes:
            raise CannotTell("the pattern could not be read back even before the free")
        program.call("free", pointer)
        again = program.call("alloc", nbytes)
        found: int = program.call("count_byte", again, 0xA5, nbytes)
        program.call("free", again)
        return found

    alone = {nbytes: old_bytes(nbytes) for nbytes in PIECES}
    program.call("alloc", 256)
    beside = {nbytes: old_bytes(nbytes) for nbytes in PIECES}
    experiment.read_device("read")
    shown = [size(nbytes) for nbytes, found in beside.items() if found]
    because = (
        f"beside a living piece every byte of {', '.join(shown)}" if shown else "none beside a living piece"
    )
    if any(0 < found < nbytes for nbytes, found in beside.items()):
        because = f"beside a living piece {sum(beside.values()):,} of {sum(beside):,} bytes"
    because += f"; alone {sum(alone.values()):,} of {sum(alone):,} bytes"
    figures = [figure(f"old bytes of {size(each)}, beside another", beside[each], "count") for each in PIECES]
    return Conclusion(any(beside.values()) or any(alone.values()), because, tuple(figures))


@claim("old-data-pool", TOPIC, takes=Takes(64 * MIB))
def old_data_pool(experiment: Experiment) -> Conclusion:
    """A pool shows the old bytes of one owner to the next

    Source: Question 5 (zero before you free), applied to where it matters.

    Method:
    64 MiB from a stream-ordered pool that keeps what it gets are filled with a pattern and freed, and
    as much is allocated again. Bytes of the pattern are counted.

    Reading:
    True means that between libraries, or between users of one server process, secrets must be
    overwritten before they are freed into a pool. `vram.Buffer` with zero_on_free does.
    """
    nbytes = experiment.nbytes
    program = experiment.cuda_worker()
    program.call("pool_keep_all")
    pointer = program.call("alloc_async", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    program.call("free_async", pointer)
    program.call("synchronize")
    found = program.call("count_byte", program.call("alloc_async", nbytes), 0xA5, nbytes)
    experiment.read_device("read")
    because = f"{found} of {nbytes} old bytes were handed over"
    return Conclusion(found > 0, because, (figure("old bytes", found, "count"),))


@claim("zero-before-free", TOPIC, takes=Takes(64 * MIB))
def zero_before_free(experiment: Experiment) -> Conclusion:
    """Memory that is zeroed before it is freed shows the next owner nothing

    Source: Question 5: overwriting is said to give the next owner of pooled memory a known beginning.

    Method:
    64 MiB from a stream-ordered pool that keeps what it gets are filled with a pattern and freed, and as much
    is allocated again: it must show the pattern. These are zeroed, freed, and as much is allocated again.
    Bytes that are not zero are counted.

    Reading:
    True: the pool gave the same memory again, and without the zeroing it showed the old bytes. It says
    nothing of copies elsewhere: registers, workspaces, host memory.
    """
    nbytes = experiment.nbytes
    program = experiment.cuda_worker()
    program.call("pool_keep_all")
    pointer = program.call("alloc_async", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    program.call("free_async", pointer)
    program.call("synchronize")
    pointer = program.call("alloc_async", nbytes)
    if program.call("count_byte", pointer, 0xA5, nbytes) != nbytes:
        raise CannotTell("without zeroing, the pool does not show the old bytes either")
    program.call("fill", pointer, 0, nbytes)
    program.call("free_async", pointer)
    program.call("synchronize")
    found = program.call("count_nonzero", program.call("alloc_async", nbytes), nbytes)
    experiment.read_device("read")
    because = f"{found} of {nbytes} bytes were not zero"
    return Conclusion(found == 0, because, (figure("bytes that were not zero", found, "count"),))


@claim("old-data-across", TOPIC, takes=Takes(2 * 128 * MIB, contexts=2))
def old_data_across(experiment: Experiment) -> Conclusion:
    """A process can read what another one left in GPU memory

    Source: Question 2: data are said to outlast the process that wrote them; question 5 fears for sensitive
    ones.

    Method:
    A process fills 128 MiB with a pattern and is killed without freeing. The next one allocates 128
    MiB and counts bytes that are not zero.

    Reading:
    False says that none of these bytes were found here. The second process need not get the same
    memory: on a large, idle GPU this shows less than on a full one.
    """
    nbytes = 128 * MIB
    first = experiment.cuda_worker()
    pointer = first.call("alloc", nbytes)
    first.call("fill", pointer, 0xA5, nbytes)
    if first.call("count_byte", pointer, 0xA5, nbytes) != nbytes:
        raise CannotTell("the pattern could not be read back even by its writer")
    first.kill()
    second = experiment.cuda_worker()
    found = second.call("count_nonzero", second.call("alloc", nbytes), nbytes)
    experiment.read_device("read")
    because = f"{found} of {nbytes} bytes were not zero"
    return Conclusion(found > 0, because, (figure("bytes that were not zero", found, "count"),))


@claim("contents-stay", TOPIC, takes=Takes(2 * 64 * MIB))
def contents_stay(experiment: Experiment) -> Conclusion:
    """What one piece of work left in device memory is there for the next one

    Source: Question 2: data are said to last from one kernel to the next.

    Method:
    The device fills 64 MiB with a pattern and is waited for. Then it fills 64 MiB more with something else,
    which are freed. Bytes of the pattern in the first 64 MiB are counted.

    Reading:
    True: an allocation keeps its contents until it is freed or its process ends. What comes after that is
    tested by old-data-plain and old-data-across.
    """
    nbytes = 64 * MIB
    program = experiment.cuda_worker()
    pointer = program.call("alloc", nbytes)
    program.call("fill", pointer, 0xA5, nbytes)
    other = program.call("alloc", nbytes)
    program.call("fill", other, 0x5A, nbytes)
    program.call("free", other)
    found = program.call("count_byte", pointer, 0xA5, nbytes)
    experiment.read_device("read")
    because = f"{found} of {nbytes} bytes were still there"
    return Conclusion(found == nbytes, because, (figure("bytes still there", found, "count"),))

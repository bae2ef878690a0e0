"""Memory of this program's own pools: cached, fragmented."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomReading, Term, Working
from vram.oom.kinds import kind
from vram.oom.remedies import (
    change,
    defragment,
    options,
    record,
    release_caches,
    run_why,
)
from vram.oom.sums import MANY_TIMES, WASTE, Sums, blamed, said, shortfall


@kind("cached", "kept by this program's own pools")
def cached(reading: OomReading, worked: Sums) -> Judgement | None:
    """cached: memory that this program holds but does not use

    What it is
    ----------
    Frameworks keep freed memory in order to use it again. The same allocator can, but nobody else in the
    process: not a CUDA library that needs a handle after TensorFlow or JAX has preallocated the GPU, and not
    an eager allocation while captured CUDA graphs keep their private pools.

    How it is recognised
    --------------------
    The message reports private pools that would have been large enough; or creating a library's handle failed
    in a program whose framework preallocates.

    Remedies
    --------
    Let the pool start small, release it before the other allocation (vram.flush()), drop graphs that are no
    longer replayed. From outside, `vram trim PID` makes a running process release its caches.
    """
    if "pool-took-all" in reading.signs:
        return _no_room_for_handle(reading)
    if reading.pooled is None or reading.asked is None or reading.free is None:
        return None
    needed = reading.asked.nbytes - reading.free.nbytes - (reading.idle.nbytes if reading.idle else 0)
    if not 0 < needed <= reading.pooled.nbytes:
        return None
    missing = reading.asked.nbytes - reading.free.nbytes
    terms = (
        Term("pools of CUDA graphs", reading.pooled.nbytes),
        *((Term("kept unused", reading.idle.nbytes),) if reading.idle else ()),
        Term("missing", -missing),
    )
    left = Working(terms, "would be left", sum(term.nbytes for term in terms))
    return Judgement(
        kind="cached",
        certainty="fact",
        title=cached.title,
        cause=f"{said(reading.pooled)} is in private pools of captured CUDA graphs. It is kept for"
        " replays, and no other allocation can use it.",
        workings=(*shortfall(reading), left),
        remedies=(
            change("Drop graphs that are no longer replayed, or capture fewer sizes."),
            change("Let graphs share one pool: torch.cuda.graph(g, pool=first.pool())."),
            change(
                "Run without graphs: mode='default' instead of 'reduce-overhead', --enforce-eager in vLLM."
            ),
        ),
    )


def _no_room_for_handle(reading: OomReading) -> Judgement:
    library = reading.wording.partition(" ")[0]
    return Judgement(
        kind="cached",
        certainty="likely",
        title=cached.title,
        cause=f"{library} could not allocate what it needs on the GPU. This program's framework"
        " preallocates most of the GPU and releases nothing, so other libraries find no room.",
        missing=("how much the framework's pool had allocated", "how much was free"),
        remedies=release_caches(reading),
    )


@kind("fragmented", "enough was unused, but fragmented")
def fragmented(reading: OomReading, worked: Sums) -> Judgement | None:
    """fragmented: enough is unused, but not in one piece

    What it is
    ----------
    An allocation needs one contiguous piece of address space. A caching allocator splits large blocks into
    small ones; while a few of them stay in use, the rest of the block can be neither merged nor freed.

    How it is recognised
    --------------------
    The allocator's unused memory and the free memory together would have been enough, and are more than the
    usual waste, or several times the request. PyTorch frees every whole block before it prints its message,
    so the memory that it still calls reserved but unallocated is between live tensors.

    Remedies
    --------
    expandable_segments (PyTorch), cuda_malloc_async (TensorFlow), cuda_async (JAX): the driver maps separate
    pieces together. Fewer different sizes help too: pad or bucket inputs, allocate the largest first.
    """
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _fragmented_pool(reading)
    asked, idle, free = reading.asked, reading.idle, reading.free
    if not (asked and idle and free and worked.reserved and worked.fits_alone is not False):
        return None
    # Many times what was asked for is waste worth naming where others would be blamed instead.
    others = blamed(reading, worked)
    usual_waste = idle.nbytes < WASTE * worked.reserved
    if others is not None and idle.nbytes >= MANY_TIMES * asked.nbytes:
        usual_waste = False
    if free.nbytes >= asked.nbytes + worked.slack or usual_waste:
        return None
    if idle.nbytes + free.nbytes + worked.slack < asked.nbytes:
        return None
    terms = (
        Term("unused, in pieces", idle.nbytes),
        *((Term("free", free.nbytes),) if free.nbytes else ()),
        Term("asked", -asked.nbytes),
    )
    beside = ""
    if others == "other-process" and worked.named:
        beside = f" Other processes held {said(worked.named)}: without them it would have fit, too."
    elif others is not None and worked.unnamed:
        beside = (
            f" About {said(worked.unnamed)} is in use beyond this program: without that it would fit, too."
        )
    return Judgement(
        kind="fragmented",
        certainty="fact" if idle.nbytes >= asked.nbytes else "likely",
        title=fragmented.title,
        cause=f"The allocator holds {said(idle)} that no tensor uses, but no single piece of it is"
        f" {said(asked)} long.{beside}",
        workings=(*shortfall(reading), _left(terms)),
        remedies=(
            *defragment(reading),
            *(options(reading) or (_tidy(), record())),
            *((run_why(reading),) if beside else ()),
        ),
    )


def _fragmented_pool(reading: OomReading) -> Judgement | None:
    """TensorFlow's and XLA's pool has one limit; what is not in use below it lies in pieces."""
    asked, limit, live = reading.asked, reading.limit, reading.live
    if not (asked and limit and live) or live.nbytes + asked.nbytes > limit.nbytes:
        return None
    if reading.idle is not None and reading.idle.nbytes + live.nbytes + asked.nbytes <= limit.nbytes:
        return None  # the pool had not even grown that far: the GPU was full, not the pool
    terms = (
        Term("limit of the pool", limit.nbytes),
        Term("in use", -live.nbytes),
        Term("asked", -asked.nbytes),
    )
    largest = f"; the largest free piece is {said(reading.largest_free)}" if reading.largest_free else ""
    return Judgement(
        kind="fragmented",
        certainty="fact" if reading.largest_free or reading.idle else "likely",
        title=fragmented.title,
        cause=f"The pool may grow to {said(limit)} and uses {said(live)}, so {said(asked)} would"
        f" fit{largest}.",
        workings=(_left(terms),),
        remedies=(*defragment(reading), _tidy()),
    )


def _left(terms: tuple[Term, ...]) -> Working:
    rest = sum(term.nbytes for term in terms)
    return Working(terms, "would be left" if rest >= 0 else "missing, within rounding", abs(rest))


def _tidy() -> Remedy:
    return change("Vary sizes less: pad or bucket inputs, and allocate the largest first.")

"""Memory of this program's own pools: cached, fragmented."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomReading, Term, Working
from vram.oom.kinds import kind
from vram.oom.remedies import (
    change,
    defragment,
    record,
    release_caches,
    run_why,
)
from vram.oom.sums import MANY_TIMES, WASTE, Sums, blamed, said, shortfall


@kind("cached", "kept by this program's own pools")
def cached(reading: OomReading, worked: Sums) -> Judgement | None:
    """cached: memory that this program keeps itself, and does not use

    What it is
    ----------
    Frameworks keep what they have freed, to hand it out again. That is no loss while the same allocator asks.
    It is one when somebody else in the same process asks: a CUDA library that needs its handle while
    TensorFlow or JAX has taken the GPU beforehand, or an eager allocation while pools of captured CUDA graphs
    keep theirs.

    How it is recognised
    --------------------
    The message counts memory in private pools that would have been enough; or a library's handle failed in a
    program whose framework preallocates.

    Remedies
    --------
    Let the pool start small, release it before the other one asks (vram.flush()), drop graphs that are no
    longer replayed. From outside, `vram trim PID` asks a living process to do the same.
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
    left = Working(terms, "would be left over", sum(term.nbytes for term in terms))
    return Judgement(
        kind="cached",
        certainty="fact",
        title=cached.title,
        cause=f"{said(reading.pooled)} lie in private pools of captured CUDA graphs. They are kept"
        " for replays,"
        " and no other allocation may use them.",
        workings=(*shortfall(reading), left),
        remedies=(
            change("Drop graphs that are no longer replayed, or capture fewer sizes."),
            change("Let graphs share one pool: torch.cuda.graph(g, pool=first.pool())."),
            change("Run without them: mode='default' instead of 'reduce-overhead', --enforce-eager in vLLM."),
        ),
    )


def _no_room_for_handle(reading: OomReading) -> Judgement:
    library = reading.wording.partition(" ")[0]
    return Judgement(
        kind="cached",
        certainty="likely",
        title=cached.title,
        cause=f"{library} could not make what it needs on the GPU. This program's framework takes"
        " most of a GPU"
        " beforehand and releases nothing, so that libraries beside its pool find no room.",
        missing=("how much the framework's pool had taken", "what was free"),
        remedies=release_caches(reading),
    )


@kind("fragmented", "enough was unused, but in pieces")
def fragmented(reading: OomReading, worked: Sums) -> Judgement | None:
    """fragmented: enough is unused, but in pieces that do not lie together

    What it is
    ----------
    An allocation needs one piece of address space. A caching allocator cuts large blocks into small ones;
    when a few of them stay in use, the rest of the block can be neither joined nor freed.

    How it is recognised
    --------------------
    What the allocator keeps unused, with what is free, would have been enough, and is more than the usual
    waste, or several times what was asked for. PyTorch has freed every whole block before it prints its
    message, so that what it still calls reserved but unallocated lies between live tensors.

    Remedies
    --------
    expandable_segments (PyTorch), cuda_malloc_async (TensorFlow), cuda_async (JAX): the driver maps pieces
    together. Less variety in sizes helps too: pad or bucket inputs, allocate the largest first.
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
    terms = (Term("unused, in pieces", idle.nbytes), Term("free", free.nbytes), Term("asked", -asked.nbytes))
    beside = ""
    if others == "other-process" and worked.named:
        beside = f" Other processes held {said(worked.named)}: without them it would have fit, too."
    return Judgement(
        kind="fragmented",
        certainty="fact" if idle.nbytes >= asked.nbytes else "likely",
        title=fragmented.title,
        cause=f"The allocator keeps {said(idle)} that no tensor uses, but no piece of it is"
        f" {said(asked)} long.{beside}",
        workings=(*shortfall(reading), _left(terms)),
        remedies=(*defragment(reading), _tidy(), record(), *((run_why(reading),) if beside else ())),
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
    largest = f"; the largest free piece has {said(reading.largest_free)}" if reading.largest_free else ""
    return Judgement(
        kind="fragmented",
        certainty="fact" if reading.largest_free or reading.idle else "likely",
        title=fragmented.title,
        cause=f"The pool may have {said(limit)} and uses {said(live)}, so {said(asked)} would fit{largest}.",
        workings=(_left(terms),),
        remedies=(*defragment(reading), _tidy()),
    )


def _left(terms: tuple[Term, ...]) -> Working:
    rest = sum(term.nbytes for term in terms)
    return Working(terms, "would be left over" if rest >= 0 else "missing, within rounding", abs(rest))


def _tidy() -> Remedy:
    return change("Vary sizes less: pad or bucket inputs, and allocate the largest first.")

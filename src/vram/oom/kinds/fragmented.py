"""fragmented: enough is unused, but in pieces that do not lie together

What it is
----------
An allocation needs one piece of address space. A caching allocator cuts large blocks into small ones; when
a few of them stay in use, the rest of the block can be neither joined nor given back.

How it is told
--------------
What the allocator keeps unused, with what is free, would have been enough, and is more than the usual
waste. PyTorch has given back every whole block before it prints its message, so that what it still calls
reserved but unallocated lies between live tensors.

Remedies
--------
expandable_segments (PyTorch), cuda_malloc_async (TensorFlow), cuda_async (JAX): the driver maps pieces
together. Less variety in sizes helps too: pad or bucket inputs, allocate the largest first.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.remedies import change, defragment, record
from vram.oom.sums import WASTE, Sums, said, shortfall

ID: OomKind = "fragmented"
TITLE = "enough was unused, but in pieces"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _pool(reading)
    asked, idle, free = reading.asked, reading.idle, reading.free
    if not (asked and idle and free and worked.reserved and worked.fits_alone is not False):
        return None
    if free.nbytes >= asked.nbytes + worked.slack or idle.nbytes < WASTE * worked.reserved:
        return None
    if idle.nbytes + free.nbytes + worked.slack < asked.nbytes:
        return None
    terms = (Term("unused, in pieces", idle.nbytes), Term("free", free.nbytes), Term("asked", -asked.nbytes))
    return Judgement(
        kind=ID,
        certainty="fact" if idle.nbytes >= asked.nbytes else "likely",
        title=TITLE,
        cause=f"The allocator keeps {said(idle)} that no tensor uses, but no piece of it is"
        f" {said(asked)} long.",
        workings=(*shortfall(reading), _left(terms)),
        remedies=(*defragment(reading), _tidy(), record()),
    )


def _pool(reading: Reading) -> Judgement | None:
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
        kind=ID,
        certainty="fact" if reading.largest_free or reading.idle else "likely",
        title=TITLE,
        cause=f"The pool may have {said(limit)} and uses {said(live)}, so {said(asked)} would fit{largest}.",
        workings=(_left(terms),),
        remedies=(*defragment(reading), _tidy()),
    )


def _left(terms: tuple[Term, ...]) -> Working:
    rest = sum(term.nbytes for term in terms)
    return Working(terms, "would be left over" if rest >= 0 else "missing, within rounding", abs(rest))


def _tidy() -> Remedy:
    return change("Vary sizes less: pad or bucket inputs, and allocate the largest first.")

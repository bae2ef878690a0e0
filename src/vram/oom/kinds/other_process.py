"""other-process: it would have fit, had nobody else been on the GPU

What it is
----------
What this program uses and asked for fits into the GPU. Others hold what is missing: another job, a
notebook that was left open, a worker of an earlier run, a desktop.

How it is told
--------------
PyTorch 2.1 and later list the processes with their sizes. Older messages do not: there it follows from
total - free - reserved, less one context.

Remedies
--------
See who they are (`vram why`), then let vram make room: `vram free SIZE` plans over trimming, parking and
ending, least harm first. Or use another GPU.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.blame import blamed
from vram.oom.remedies import change, end, let_go, look, make_room, utilization
from vram.oom.sums import CONTEXT, Sums, said, shortfall, usual_context

ID: OomKind = "other-process"
TITLE = "held by another process"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.dialect == "vllm" and reading.wording == "startup":
        return _startup(reading, worked)
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _ungrown(reading)
    if blamed(reading, worked) != ID:
        return None
    return Judgement(
        kind=ID,
        certainty="fact" if worked.named else "likely",
        title=TITLE,
        cause=_cause(reading, worked),
        workings=(*shortfall(reading), *_rest(reading, worked)),
        remedies=(
            look(reading),
            make_room(reading),
            *end([share.pid for share in worked.listed]),
            change("Or start on another GPU: CUDA_VISIBLE_DEVICES=N."),
        ),
    )


def _cause(reading: Reading, worked: Sums) -> str:
    if not worked.listed:
        pool = ", or what this program's own pool keeps unused" if "driver-pool" in reading.signs else ""
        return (
            f"About {said(worked.unnamed)} are in use beyond what this program's allocator and its"
            " context hold."
            f" The message does not say whose; other processes, or ghosts of earlier ones{pool}."
        )
    largest = max(worked.listed, key=lambda share: share.nbytes.nbytes if share.nbytes else 0)
    if len(worked.listed) == 1:
        return f"Process {largest.pid} held {said(largest.nbytes)}. Without it, this would have fit."
    return (
        f"{len(worked.listed)} other processes held {said(worked.named)}, process {largest.pid} alone"
        f" {said(largest.nbytes)}. Without them, this would have fit."
    )


def _rest(reading: Reading, worked: Sums) -> tuple[Working, ...]:
    if worked.listed or reading.total is None or reading.free is None or worked.reserved is None:
        return ()
    one = "one context" if usual_context(reading) else "one context, as on NVIDIA"
    terms = (
        Term("total", reading.total.nbytes),
        Term("free", -reading.free.nbytes),
        Term("this program's allocator", -worked.reserved),
        Term(one, -CONTEXT, sure=False),
    )
    return (Working(terms, "held by others", sum(term.nbytes for term in terms)),)


def _startup(reading: Reading, worked: Sums) -> Judgement:
    """vLLM looks before it takes anything: all that is not free then is somebody else's."""
    held = reading.total.nbytes - reading.free.nbytes if reading.total and reading.free else None
    workings = shortfall(reading)
    if reading.total and reading.free and held is not None:
        terms = (Term("total", reading.total.nbytes), Term("free", -reading.free.nbytes))
        workings = (*workings, Working(terms, "held before vLLM began", held))
    return Judgement(
        kind=ID,
        certainty="likely",
        title=TITLE,
        cause=f"{said(held)} were in use before vLLM took anything, so its share of the GPU"
        f" ({reading.utilization}) could not be had.",
        workings=workings,
        remedies=(look(reading), make_room(reading), *utilization(reading)),
    )


def _ungrown(reading: Reading) -> Judgement | None:
    """A pool that stays below its own limit because the driver has no more to give."""
    asked, limit, live, idle = reading.asked, reading.limit, reading.live, reading.idle
    if not (asked and limit and live and idle) or live.nbytes + idle.nbytes + asked.nbytes > limit.nbytes:
        return None
    terms = (
        Term("limit of the pool", limit.nbytes),
        Term("in use", -live.nbytes),
        Term("kept unused", -idle.nbytes),
        Term("asked", -asked.nbytes),
    )
    room = sum(term.nbytes for term in terms)
    return Judgement(
        kind=ID,
        certainty="likely",
        title=TITLE,
        cause=f"The pool may have {said(limit)} and has grown to {said(live.nbytes + idle.nbytes)}"
        " only: the driver"
        " had no more to give, so others hold it.",
        workings=(Working(terms, "below the limit", room),),
        remedies=(look(reading), make_room(reading), *_start_small(reading)),
    )


def _start_small(reading: Reading) -> tuple[Remedy, ...]:
    return let_go(reading)

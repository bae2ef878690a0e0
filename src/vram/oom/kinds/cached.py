"""cached: memory that this program keeps itself, and does not use

What it is
----------
Frameworks keep what they have freed, to hand it out again. That is no loss while the same allocator asks.
It is one when somebody else in the same process asks: a CUDA library that needs its handle while
TensorFlow or JAX has taken the GPU beforehand, or an eager allocation while pools of captured CUDA graphs
keep theirs.

How it is told
--------------
The message counts memory in private pools that would have been enough; or a library's handle failed in a
program whose framework preallocates.

Remedies
--------
Let the pool start small, give it back before the other one asks (vram.flush()), drop graphs that are no
longer replayed. From outside, `vram trim PID` asks a living process to do the same.
"""

from __future__ import annotations

from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.remedies import change, let_go
from vram.oom.sums import Sums, said, shortfall

ID: OomKind = "cached"
TITLE = "kept by this program's own pools"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if "pool-took-all" in reading.signs:
        return _handle(reading)
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
        kind=ID,
        certainty="fact",
        title=TITLE,
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


def _handle(reading: Reading) -> Judgement:
    library = reading.wording.partition(" ")[0]
    return Judgement(
        kind=ID,
        certainty="likely",
        title=TITLE,
        cause=f"{library} could not make what it needs on the GPU. This program's framework takes"
        " most of a GPU"
        " beforehand and gives nothing back, so that libraries beside its pool find no room.",
        missing=("how much the framework's pool had taken", "what was free"),
        remedies=let_go(reading),
    )

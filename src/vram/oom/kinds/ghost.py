"""ghost: memory is in use, and no process of the list has it

What it is
----------
The processes that the driver lists hold less than is in use. The rest is kept by somebody whom no list
names: a forked child of a process that is gone, an exported handle or a dma-buf in a process without a
context, or a process that cannot be seen from inside this container.

How it is told
--------------
total - free - this process - all listed processes is far more than the driver keeps for itself, and would
have been enough.

How to confirm
--------------
`vram why` on that machine names who keeps it (findings VR101 to VR104), and `vram oom --live` joins it with
the message.

Remedies
--------
End or repair the keeper that `vram why` names. A reset of the GPU is no remedy while it lives.
"""

from __future__ import annotations

from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.blame import blamed
from vram.oom.remedies import join_live, look, make_room
from vram.oom.sums import Sums, said, shortfall

ID: OomKind = "ghost"
TITLE = "held by nobody on the list"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if blamed(reading, worked) != ID:
        return None
    return Judgement(
        kind=ID,
        certainty="likely",
        title=TITLE,
        cause=f"{said(worked.unnamed)} are in use and belong to none of the processes that the"
        " message lists: a"
        " ghost, or a process that cannot be seen from where this ran.",
        workings=(*shortfall(reading), _rest(reading, worked)),
        remedies=(
            join_live(),
            look(reading, "Name who keeps it: vram looks at open files, not at the list."),
            make_room(reading),
        ),
    )


def _rest(reading: Reading, worked: Sums) -> Working:
    assert reading.total is not None
    assert reading.free is not None
    ours = max(reading.process.nbytes if reading.process else 0, worked.reserved or 0)
    terms = (
        Term("total", reading.total.nbytes),
        Term("free", -reading.free.nbytes),
        Term("this process", -ours),
        *((Term("listed processes", -worked.named),) if worked.named else ()),
    )
    return Working(terms, "on no list", sum(term.nbytes for term in terms))

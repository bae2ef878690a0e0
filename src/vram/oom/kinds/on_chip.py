"""on-chip: a kernel wants more of the chip's own memory than a block can have

What it is
----------
Shared memory, tensor memory and registers are on the chip itself: some hundred kilobytes for a block of
threads. The GPU's gigabytes have nothing to do with it, and freeing them does not help.

How it is told
--------------
The message names the resource, what the kernel requires and the hardware's limit.

Remedies
--------
Smaller blocks or fewer pipeline stages for that kernel; for a library's kernel, a version that knows
this GPU.
"""

from __future__ import annotations

from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.remedies import change
from vram.oom.sums import Sums

ID: OomKind = "on-chip"
TITLE = "memory on the chip, not the GPU's memory"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.where != "on-chip":
        return None
    asked, limit = reading.asked, reading.limit
    workings: tuple[Working, ...] = ()
    if asked and limit:
        terms = (Term("required", asked.nbytes), Term("hardware limit", -limit.nbytes))
        workings = (Working(terms, "too much", asked.nbytes - limit.nbytes),)
    return Judgement(
        kind=ID,
        certainty="fact",
        title=TITLE,
        cause=f"A kernel wants more {reading.wording} for a block than this chip has. The GPU's own memory is"
        " not involved.",
        workings=workings,
        remedies=(
            change("Use smaller blocks or fewer pipeline stages (num_stages, BLOCK_SIZE) for that kernel."),
            change("Where the kernel is a library's: take a version that was tuned for this GPU."),
        ),
    )

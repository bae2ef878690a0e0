"""broken-context: an earlier error broke the CUDA context, and nothing in it can be freed

What it is
----------
An illegal memory access, a failed assert on the device, a misaligned address or a failed launch in one
kernel breaks the whole CUDA context. Every later call in it returns the same error, also calls that have
nothing to do with that kernel, such as freeing memory. The memory itself is fine and is not missing: it
stays with the process until the process ends.

How it is told
--------------
By the error's name or number: NVIDIA's documentation says of 226, 700, 702, 710, 714 to 719, 721, 810 and
911 that the process has to be started again. CUDA reports such an error late, at whichever call comes next:
the line that raised it is often not the one that caused it.

Remedies
--------
End the process and start it again: that returns its memory. `vram.flush()`, emptying caches, a smaller
batch and trying again do not help. To find the cause, run once with CUDA_LAUNCH_BLOCKING=1, so that the
error comes from its own line, or under compute-sanitizer. With PyTorch an index out of range in an
embedding or a gather is the usual one: run that step on the CPU, where the error names it.
"""

from __future__ import annotations

from vram.model.oom import Judgement, OomKind, Reading
from vram.oom.dialects.broken import SIGN
from vram.oom.remedies import change
from vram.oom.sums import Sums

ID: OomKind = "broken-context"
TITLE = "not memory: an error that broke the context"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if SIGN not in reading.signs:
        return None
    return Judgement(
        kind=ID,
        certainty="fact",
        title=TITLE,
        cause=f"{reading.wording} breaks the CUDA context: every later call of the process fails with it,"
        " frees too. Only ending the process returns its memory.",
        remedies=(
            change("End the process and start it again: what it had on the GPU is lost already."),
            change("Have the error come from its own line, once.", "export CUDA_LAUNCH_BLOCKING=1"),
            change("Or run it under compute-sanitizer, which names the kernel and the address."),
        ),
    )

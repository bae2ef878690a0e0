"""gpu.bar1  Is there room in the window through which the processor sees GPU memory (BAR1)?

What is looked at
-----------------
How much of each GPU's BAR1 is in use.

What it means
-------------
Mappings for peers, RDMA and displays need it. Where it is used up, programs fail with errors that
look like a lack of memory, while memory is free.

What to do
----------
See who holds the GPU, and end what is not needed. Larger windows come with "Resizable BAR" or "Above
4G decoding" in the firmware's settings.
"""

from __future__ import annotations

from vram.doctor.answers import NO_DRIVER, Answer, not_applicable, ok
from vram.doctor.sight import Sight
from vram.model.doctor import Topic, Verb
from vram.units import size

ID = "gpu.bar1"
TOPIC: Topic = "gpu"
VERBS: tuple[Verb, ...] = ("why",)
OPTIONAL = False

_NEARLY = 0.9


def judge(sight: Sight) -> Answer:
    if not sight.gpus:
        return NO_DRIVER
    shares = {
        index: gpu.bar1_used / gpu.bar1_total
        for index, gpu in sight.gpus.items()
        if gpu.bar1_total and gpu.bar1_used is not None
    }
    if not shares:
        return not_applicable("the driver does not tell of BAR1")
    worst = max(shares, key=lambda index: shares[index])
    gpu = sight.gpus[worst]
    figures = f"{size(gpu.bar1_used or 0)} of {size(gpu.bar1_total or 0)}"
    if shares[worst] < _NEARLY:
        return ok(f"BAR1 {shares[worst]:.0%} used", f"GPU {worst}: {figures}")
    return Answer(
        state="limited",
        seen=f"GPU {worst}: {figures} of BAR1 are used",
        means="New mappings for peers or RDMA may fail, although memory is free.",
        fix="See who holds this GPU, and end what is not needed.",
        command=f"vram who --gpu {worst}",
    )

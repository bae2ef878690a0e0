"""bar1: the window onto the GPU's memory is full, not the memory

What it is
----------
The host and other devices reach a GPU's memory through a window on the PCI bus, BAR1. On many GPUs it is
256 MiB for gigabytes of memory. Mappings for the host, for peer GPUs and for network cards (GPUDirect)
all take room in it. When it is full, calls fail with "mapping of buffer object failed" or as out of
memory, while plenty of memory is free.

How it is told
--------------
By the words: a mapping failed, or a network card could not register memory of the GPU.

How to confirm
--------------
    nvidia-smi -q -d MEMORY | grep -A 3 BAR1

Remedies
--------
Register less memory at once, let go of mappings, or switch on Resizable BAR (Above 4G decoding) in the
firmware of the machine, so that the window is as large as the memory. `vram explain VR402` has more.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading
from vram.oom.remedies import change, look
from vram.oom.sums import Sums

ID: OomKind = "bar1"
TITLE = "the window onto the GPU's memory (BAR1) is full"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.where != "bar1":
        return None
    confirm = "nvidia-smi -q -d MEMORY | grep -A 3 BAR1"
    return Judgement(
        kind=ID,
        certainty="likely",
        title=TITLE,
        cause="A mapping of GPU memory failed, not an allocation of it: what ran out is address space in the"
        " window through which the host, peers and network cards reach the memory.",
        missing=("the size of BAR1 and how much of it is used",),
        remedies=(
            Remedy(step="look", target="gpu", text="See how large the window is.", command=confirm),
            look(reading, "See whether `vram why` finds BAR1 exhausted."),
            change("Register less memory at once, and deregister what is no longer used."),
            change("Switch on Resizable BAR (Above 4G decoding) in the machine's firmware.", target="host"),
        ),
    )

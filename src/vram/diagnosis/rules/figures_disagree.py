"""VR107 Figures disagree: the driver's own numbers overlap, or moved while they were read.

What it detects
---------------
The process lists claim more than is in use, because the same bytes are charged twice; or the
amount in use changed while the lists were read, after all retries. The ledger still balances:
each byte is counted once, and the driver's own figure is kept beside the entry.

Why it happens
--------------
Memory shared between processes (CUDA IPC) can be charged to its owner and again to each importer.
And the driver has no call that reads memory and process lists at one moment: on a busy GPU they
are moments apart.

How to confirm
--------------
Take two readings in a row; an overlap stays, a movement does not:

    vram why --json
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv

Remedies and their risk
-----------------------
- Look again when the GPU is quiet, or watch it: `vram watch`. No risk.
- Nothing has to be freed: this finding is about figures, not about memory.

Source
------
Measured on an H200, driver 580.159: an importer's charge grew from 518 to 4614 MiB when the
exporter of its IPC memory died. NVML's header tells private from shared figures per process.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.units import size

CODE = "VR107"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        overlapping = [entry for entry in gpu.entries if _excess(entry) > 0]
        moved = abs(gpu.memory.moved_bytes) if gpu.memory else 0
        if overlapping or moved:
            yield _finding(gpu, overlapping, moved)


def _excess(entry: Entry) -> int:
    # What Windows counts under WSL2 is no figure of the driver's: the ledger's notes tell of it.
    return 0 if entry.claimed is None or entry.windows else entry.claimed - (entry.nbytes or 0)


def _finding(gpu: GpuLedger, overlapping: list[Entry], moved: int) -> Finding:
    what = "overlap" if overlapping else "moved while they were read"
    return Finding(
        code=CODE,
        title=f"The driver's figures for GPU {gpu.index} {what}",
        # These bytes are not held by anyone in particular; the entries say who holds what.
        nbytes=None,
        cause=" ".join(_sentences(overlapping, moved)),
        gpus=(gpu.index,),
        pids=tuple(dict.fromkeys(entry.holder.pid for entry in overlapping if entry.holder)),
        evidence=words.evidence(
            (note.text for note in gpu.notes), (line for entry in overlapping for line in entry.evidence)
        ),
        remedies=(_look_again(gpu),),
        severity="info",
    )


def _sentences(overlapping: list[Entry], moved: int) -> Iterator[str]:
    if overlapping:
        excess = sum(map(_excess, overlapping))
        yield f"The process lists claim {size(excess)} twice, as for shared memory; here it counts once."
    if moved:
        yield f"Memory in use changed by {size(moved)} while the process lists were read."


def _look_again(gpu: GpuLedger) -> Remedy:
    text = "Look again when the GPU is quiet; what overlaps stays, what moved does not."
    return Remedy(step="look", target=f"gpu {gpu.index}", text=text, command="vram why")

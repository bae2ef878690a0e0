"""VR107 Figures disagree: the driver's own numbers overlap, or changed while they were read.

What it detects
---------------
The process lists add up to more than is in use, because the same bytes are charged twice; or the
amount in use kept changing while the lists were read, after all retries. The ledger still
balances: each byte is counted once, and the driver's own figure is kept beside the entry.

Why it happens
--------------
Memory shared between processes (CUDA IPC) can be charged to its owner and again to each importer.
And the driver has no call that reads memory and process lists at the same moment, so on a busy GPU
they differ.

How to confirm
--------------
Run it twice; an overlap stays, a change does not:

    vram why --json
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv

Remedies and their risk
-----------------------
- Run it again when the GPU is idle, or watch it: `vram watch`. No risk.
- Nothing has to be freed: this finding is about figures, not about memory.

Source
------
Measured on an H200, driver 580.159: an importer's charge grew from 518 to 4614 MiB when the
exporter of its IPC memory died. NVML's header has separate private and shared figures per process.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import words
from vram.ledger.holds import in_ledger_order, on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.units import size

CODE = "VR107"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu, holds in on_each_gpu(ledger, lambda entry: _excess(entry) > 0, empty=True):
        overlapping = [part.entry for part in in_ledger_order(holds)]
        moved = abs(gpu.memory.moved_bytes) if gpu.memory else 0
        if overlapping or moved:
            yield _finding(gpu, overlapping, moved)


def _excess(entry: Entry) -> int:
    # What Windows counts under WSL2 is no figure of the driver's: the ledger's notes tell of it.
    return 0 if entry.claimed is None or entry.windows else entry.claimed - (entry.nbytes or 0)


def _finding(gpu: GpuLedger, overlapping: list[Entry], moved: int) -> Finding:
    what = "overlap" if overlapping else "changed while they were read"
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
        remedies=(
            Remedy(
                step="look",
                target=f"gpu {gpu.index}",
                text="Run it again when the GPU is idle; an overlap stays, a change does not.",
                command="vram why",
            ),
        ),
        severity="info",
    )


def _sentences(overlapping: list[Entry], moved: int) -> Iterator[str]:
    if overlapping:
        excess = sum(map(_excess, overlapping))
        yield f"The process lists count {size(excess)} twice, as for shared memory. It is counted once here."
    if moved:
        yield f"Memory in use changed by {size(moved)} while the process lists were read."

"""VR408 Reserve for managed memory: the driver keeps some until the last process ends.

What it detects
---------------
Up to 126 MiB, a multiple of 2 MiB, is in use on a GPU that a process uses CUDA on. No process is
charged with it, none that can be seen holds it, and no managed memory in use accounts for it.

Why it happens
--------------
The driver takes device memory for managed memory (cudaMallocManaged, unified memory) 128 MiB at a
time, and all processes of the GPU share it. A free, or the end of a process, returns what was
touched. The rest stays in use as a reserve for the managed memory of any process, also when the
process that it was taken for has ended. It goes when the last process has ended that uses CUDA
there.

How to confirm
--------------
Nothing reports its size. vram calls it a fact only as root on the host, where it read the open
files of all processes, and nothing else can hold memory: no descriptor is on its way through a
socket or registered with an io_uring, no thread has files of its own, no other driver that takes
GPU memory is in use, and no process is exiting. Otherwise it is likely: a hidden process may hold
as much. More than 126 MiB is never called the reserve.

    sudo vram why

Remedies and their risk
-----------------------
- Nothing has to be done. The next managed memory uses it, and it goes with the last CUDA process.

Source
------
Measured on an H200, driver 580.159, beside a living CUDA process: processes that touched 4, 64 and
200 MiB of managed memory, one after the other, and exited left 124, 60 and 116 MiB in use. Read in
NVIDIA's open kernel modules (uvm_pmm_gpu.c of 580.126 and 595.45): it takes 64 pieces of 2 MiB
where none is left, which is the parameter uvm_perf_pma_batch_nonpinned_order of nvidia-uvm. Threads
that do so at the same moment may take more, and then it is not called the reserve.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.diagnosis import remedies, words
from vram.model.finding import Finding
from vram.model.ledger import GpuLedger, Ledger, known_bytes
from vram.units import size

CODE = "VR408"


def judge(ledger: Ledger) -> Iterator[Finding]:
    for gpu in ledger.gpus:
        if gpu.of_kind("preallocated"):
            yield _finding(ledger, gpu)


def _finding(ledger: Ledger, gpu: GpuLedger) -> Finding:
    entries = gpu.of_kind("preallocated")
    nbytes = known_bytes(entries)
    sure = all(entry.confidence == "fact" for entry in entries)
    likely = "" if sure else "likely "
    cause = (
        f"The driver {likely}keeps {size(nbytes)} for managed memory, of any process. It goes when the last"
        " process ends that uses CUDA on the GPU; nothing has to be done."
    )
    if not sure:
        cause += " A process that is not visible from here could hold as much."
    return Finding(
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu.index} is {likely}the driver's reserve for managed memory",
        nbytes=nbytes,
        cause=cause,
        gpus=(gpu.index,),
        evidence=words.evidence(line for entry in entries for line in entry.evidence),
        remedies=() if sure or ledger.host.uid == 0 else (remedies.see_more(ledger.host),),
        severity="info",
    )

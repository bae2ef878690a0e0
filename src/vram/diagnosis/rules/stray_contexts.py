"""VR210 Stray contexts: ranks of one job each have a context on a GPU that is not theirs.

What it detects
---------------
Two or more processes of one job, or of one parent, have little more than a CUDA context on the
same GPU, mostly GPU 0, while each has its memory on another GPU.

Why it happens
--------------
A CUDA call that names no device runs on the current one, which is the first visible GPU until the
program chooses another, and it makes a context there. In PyTorch a tensor on "cuda", pinned memory,
`empty_cache()`, or a barrier before `torch.cuda.set_device()` is such a call, and so is work in a
thread of its own: the current device is that of a thread. With eight ranks, seven contexts lie on
GPU 0: its own rank runs out of memory first.

How to confirm
--------------
The same pids are on two GPUs, with hundreds of MiB on the first:

    vram who
    nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv

Remedies and their risk
-----------------------
- Call torch.cuda.set_device(local_rank) before the first CUDA call, in threads that use CUDA too.
- Or start each rank with CUDA_VISIBLE_DEVICES set to its own GPU: it cannot use another one then.
- Pass the rank's device where one is asked for: `torch.load(..., map_location=device)`,
  `dist.barrier(device_ids=[local_rank])`.
- A context is freed when its process exits: the job has to be started again.

Source
------
Reported in pytorch#37250, pytorch#135279 (about 1 GB on GPU 0 for each rank, none with
set_device), pytorch#49481 (871 MiB each), pytorch#159262 (the barrier). Measured on an H200,
driver 580.159: a bare context is charged with 518.0 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from vram.diagnosis import words
from vram.diagnosis.held import StrayContexts, find_stray_contexts, finding_about
from vram.ledger.holds import on_gpu
from vram.model.finding import Finding, Remedy
from vram.model.ledger import Ledger
from vram.units import size

CODE = "VR210"

_RANKS_SHOWN = 8


def judge(ledger: Ledger) -> Iterator[Finding]:
    for each in find_stray_contexts(ledger):
        # Of an orphaned job, another finding says what to do with all of its memory.
        if each.job is None or not each.job.is_orphan:
            yield _finding(ledger, each)


def _finding(ledger: Ledger, stray: StrayContexts) -> Finding:
    here = [on_gpu(hold, stray.at) for hold in stray.holds]
    gpu, nbytes = ledger.gpus[stray.at].index, sum(hold.known_bytes for hold in here)
    people = [hold.holders[0] for hold in here]
    elsewhere = sorted({index for hold in stray.holds for index in hold.gpus} - {gpu})
    return finding_about(
        *here,
        code=CODE,
        title=f"{size(nbytes)} of GPU {gpu} used by contexts of {_members(stray)}",
        cause=(
            f"{_ranks(stray)} ({words.processes(people)}) each have their memory on {words.gpus(elsewhere)},"
            f" and little more than a CUDA context on GPU {gpu}. They made a CUDA call before they chose"
            " their GPU."
        ),
        pids=[holder.pid for holder in people],
        evidence=(
            f"pid {whole.holders[0].pid} holds {size(part.known_bytes)} on GPU {gpu}"
            f" and {size(whole.known_bytes - part.known_bytes)} on other GPUs"
            for whole, part in zip(stray.holds, here, strict=True)
        ),
        remedies=_remedies(),
        severity="warning",
    )


def _remedies() -> tuple[Remedy, ...]:
    choose = "In each rank, call torch.cuda.set_device(local_rank) before the first CUDA call."
    hide = "Or start each rank with CUDA_VISIBLE_DEVICES set to its own GPU in its environment."
    return (
        Remedy(step="change", target="program", text=choose),
        Remedy(step="change", target="program", text=hide),
    )


def _members(stray: StrayContexts) -> str:
    count = len(stray.holds)
    # Without the job's size, which is its own word and may be any number.
    return (
        words.members(replace(stray.job, size=None), count)
        if stray.job
        else f"{count} processes of one parent"
    )


def _ranks(stray: StrayContexts) -> str:
    """Who they are: "Ranks 1, 2, 3 of a torchrun job"."""
    jobs = [hold.holders[0].job for hold in stray.holds]
    ranks = sorted(job.rank for job in jobs if job is not None and job.rank is not None)
    if stray.job is None or len(ranks) < len(jobs):
        return f"{len(jobs)} processes of one {'job' if stray.job else 'parent'}"
    shown = ", ".join(map(str, ranks[:_RANKS_SHOWN])) + (", ..." if len(ranks) > _RANKS_SHOWN else "")
    return f"Ranks {shown} of a {stray.job.by} job"

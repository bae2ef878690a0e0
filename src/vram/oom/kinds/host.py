"""host: the computer's own memory ran out, not the GPU's

What it is
----------
Pinned buffers, data loaders, arrays of NumPy and checkpoints that are being loaded live in host memory.
The kernel ends a process when that runs out, a job scheduler or a container ends it at its own bound, and
drivers report a failed pinned allocation as "out of memory" without saying of what.

How it is told
--------------
By who speaks: the kernel, a scheduler, an allocator of the CPU side, or a call that pins memory. Where such
a call stands only in the frames above the error it is likely, not certain: CUDA reports errors late.

Remedies
--------
Less pinning (pin_memory=False), fewer workers, more host memory for the job, larger /dev/shm for workers
that share tensors. Nothing on the GPU needs to be freed.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading
from vram.oom.remedies import change
from vram.oom.sums import Sums, said, shortfall

ID: OomKind = "host"
TITLE = "host memory, not the GPU's"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if reading.where not in ("host", "pinned"):
        return None
    return Judgement(
        kind=ID,
        certainty="likely" if reading.wording == "shell" or "by-frames" in reading.signs else "fact",
        title="pinned host memory" if reading.where == "pinned" else TITLE,
        cause=_cause(reading),
        workings=shortfall(reading),
        remedies=(_look(), *_ways(reading)),
    )


def _cause(reading: Reading) -> str:
    if reading.where == "pinned":
        amount = f" of {said(reading.asked)}" if reading.asked else ""
        failed = "failed, by the frames above the error" if "by-frames" in reading.signs else "failed"
        return (
            f"A pinned allocation{amount} {failed}. It comes from host memory, is bounded by what the"
            " kernel lets a process lock, and has nothing to do with what is free on the GPU."
        )
    if "shared-memory" in reading.signs:
        return "A data loader's worker ran out of /dev/shm, the memory that processes share."
    if "killed" in reading.signs:
        why = "because host memory ran out"
        if "bounded" in reading.signs:
            why = "at the bound on host memory that its job or container has; the machine may have more"
        held = f" It held {said(reading.live)}." if reading.live else ""
        unsure = " or somebody sent SIGKILL." if reading.wording == "shell" else "."
        return f"The process was ended {why}{unsure if held == '' else '.'}{held}"
    return f"An allocation of {said(reading.asked)} in host memory failed."


def _look() -> Remedy:
    text = "See what host memory is left, and what the kernel ended."
    return Remedy(step="look", target="host", text=text, command="free -h; sudo dmesg --ctime | grep -i oom")


def _ways(reading: Reading) -> tuple[Remedy, ...]:
    if reading.where == "pinned":
        less = change("Pin less: pin_memory=False in the DataLoader, smaller staging buffers.")
        if reading.dialect == "llama.cpp":
            text = "llama.cpp goes on without pinning, only slower. Spare it the try:"
            less = change(text, "export GGML_CUDA_NO_PINNED=1")
        return (
            less,
            Remedy(step="look", target="host", text="See how much may be locked.", command="ulimit -l"),
        )
    if "shared-memory" in reading.signs:
        text = "Give the container more of it: docker run --shm-size=16g, or an emptyDir of medium Memory."
        return (
            Remedy(step="look", target="host", text="See how full it is.", command="df -h /dev/shm"),
            change(text, target="container"),
            change("Or fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')."),
        )
    ways = [
        change("Need less on the host: fewer workers, smaller prefetch, memory-mapped or sharded loading.")
    ]
    if reading.wording in ("slurm", "srun"):
        ways.append(change("Ask the scheduler for more host memory: sbatch --mem=SIZE.", target="job"))
    if reading.wording == "kubernetes":
        ways.append(change("Raise resources.limits.memory of the pod.", target="pod"))
    if reading.wording == "kernel" and "bounded" in reading.signs:
        ways.append(change("Give the container more: docker run --memory=SIZE.", target="container"))
    return tuple(ways)

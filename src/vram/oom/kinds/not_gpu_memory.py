"""Errors that are not about the GPU's memory: host, bar1, on-chip, broken-context."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomMessage, Working
from vram.oom.dialects.sticky import HARDWARE_XIDS, STICKY_SIGN, XIDS
from vram.oom.kinds import kind
from vram.oom.remedies import change, run_why
from vram.oom.sums import Sums, calculate, say, shortfall
from vram.payloads.trim.driver import STICKY


@kind("broken-context", "not memory: an error broke the CUDA context")
def broken_context(reading: OomMessage, worked: Sums) -> Judgement | None:
    """broken-context: an earlier error broke the CUDA context, and nothing in it can be freed

    What it is:
    An illegal memory access, a failed assert on the device, a misaligned address or a failed launch in one
    kernel breaks the whole CUDA context. Every later call in it returns the same error, even calls that have
    nothing to do with that kernel, such as freeing memory. There is no lack of memory: the process holds its
    memory until it exits.

    How it is recognised:
    By the error's name, number or description, in the words of CUDA, PyTorch, CuPy, Numba, PyCUDA, JAX,
    TensorFlow and llama.cpp: NVIDIA's documentation says of 226, 700, 702, 710, 714 to 719, 721, 810 and 911
    that the process has to be restarted. CUDA reports such an error late, at the next call: the line that
    raised it is often not the one that caused it. In the kernel's log the driver reports it as an Xid: 13, 31
    and 43 are faults of the program, 45 follows another error, 48, 74, 79, 94, 95, 119 and 120 are faults of
    the GPU or its links.

    Remedies:
    Restart the process: that frees its memory. `vram.flush()`, emptying caches, a smaller batch and trying
    again do not help. To find the cause, run once with CUDA_LAUNCH_BLOCKING=1, so that the error appears at
    its own line, or under compute-sanitizer. With PyTorch the usual cause of an assert is an index out of
    range in an embedding or a gather: run that step on the CPU, where the error names it. TORCH_USE_CUDA_DSA,
    which PyTorch's message names, is an option for building PyTorch; a released wheel was built without it.
    """
    if STICKY_SIGN not in reading.signs:
        return None
    advice = _after_a_fault(reading) if reading.dialect == "xid" else _find_the_first(reading)
    return broken_context.conclude(
        "fact",
        f"This is not out of memory. {_broken_by(reading)} broke the CUDA context: every later call of"
        " the process fails, even freeing. Its memory returns when the process ends.",
        remedies=(change("Restart the process: what it had on the GPU is already lost."), *advice),
    )


def _broken_by(reading: OomMessage) -> str:
    assert reading.code is not None
    if reading.dialect == "xid":
        words = XIDS[reading.code]
        process = f" of process {reading.pids[0]}" if reading.pids else ""
        return f"{words[0].upper()}{words[1:]}, Xid {reading.code}{process},"
    name, _, words = STICKY[reading.code]
    failed = f': "{reading.assertion}" failed' if reading.assertion else ""
    return f"{words[0].upper()}{words[1:]} ({name}, {reading.code}{failed})"


def _find_the_first(reading: OomMessage) -> tuple[Remedy, ...]:
    """CUDA reports such an error late, and then again and again."""
    torch = reading.reporter == "pytorch"
    advice = [
        change(
            "Find the first error; all others follow from it. Run once with this, so that it appears at the"
            " call that caused it.",
            "export CUDA_LAUNCH_BLOCKING=1",
        ),
        change("Or run it under compute-sanitizer, which names the kernel, the thread and the address."),
    ]
    if reading.wording == "CUDA_ERROR_ASSERT" and torch:
        advice.insert(
            0,
            change(
                "Look for an index or a label out of range (embedding, gather, loss): run that step on"
                " the CPU, where the error names it."
            ),
        )
    if torch:
        text = "TORCH_USE_CUDA_DSA is an option for building PyTorch: setting it for a run changes nothing."
        advice.append(change(text))
    return tuple(advice)


def _after_a_fault(reading: OomMessage) -> tuple[Remedy, ...]:
    if reading.code in HARDWARE_XIDS:
        return (
            Remedy(step="look", target="gpu", text="Check the GPU's errors.", command="nvidia-smi -q -d ECC"),
            change(
                "If it happens again, reset the GPU or the machine, and have the GPU checked.", target="host"
            ),
        )
    return (
        change(
            "Find the call in the program's own log, at the same time: run it once with this, or under"
            " compute-sanitizer.",
            "export CUDA_LAUNCH_BLOCKING=1",
        ),
        change("If different programs fail like that on one GPU, have the GPU checked.", target="host"),
    )


@kind("on-chip", "on-chip memory, not the GPU's memory")
def on_chip(reading: OomMessage, worked: Sums) -> Judgement | None:
    """on-chip: a kernel wants more on-chip memory than a block can have

    What it is:
    Shared memory, tensor memory and registers are on the chip itself: some hundred kilobytes for a block of
    threads. The GPU's memory is not involved, and freeing it does not help.

    How it is recognised:
    The message names the resource, what the kernel requires and the hardware's limit.

    Remedies:
    Use smaller blocks or fewer pipeline stages for that kernel; for a library's kernel, a version that
    supports this GPU.
    """
    if reading.where != "on-chip":
        return None
    asked, limit = reading.asked, reading.limit
    workings: tuple[Working, ...] = ()
    if asked and limit:
        workings = (calculate("too much", {"required": asked}, {"hardware limit": limit}),)
    return on_chip.conclude(
        "fact",
        f"A kernel wants more {reading.wording} for a block than this chip has. The GPU's own"
        " memory is not involved.",
        workings=workings,
        remedies=(
            change("Use smaller blocks or fewer pipeline stages (num_stages, BLOCK_SIZE) for that kernel."),
            change("If it is a library's kernel: use a version that was tuned for this GPU."),
        ),
    )


@kind("bar1", "BAR1, the window to the GPU's memory, is full")
def bar1(reading: OomMessage, worked: Sums) -> Judgement | None:
    """bar1: the window to the GPU's memory is full, not the memory

    What it is:
    The host and other devices access a GPU's memory through a window on the PCI bus, BAR1. On many GPUs it is
    256 MiB for gigabytes of memory. Mappings for the host, for peer GPUs and for network cards (GPUDirect)
    all use space in it. When it is full, calls fail with "mapping of buffer object failed" or "out of
    memory", while plenty of memory is free.

    How it is recognised:
    By its words: a mapping failed, or a network card could not register GPU memory.

    How to confirm:
        nvidia-smi -q -d MEMORY | grep -A 3 BAR1

    Remedies:
    Register less memory at once, release mappings, or enable Resizable BAR (Above 4G decoding) in the
    machine's firmware, so that the window is as large as the memory. `vram explain VR402` has more.
    """
    if reading.where != "bar1":
        return None
    confirm = "nvidia-smi -q -d MEMORY | grep -A 3 BAR1"
    return bar1.conclude(
        "likely",
        "A mapping of GPU memory failed, not an allocation: the window through which the host,"
        " peers and network cards access the memory ran out of address space.",
        missing=("the size of BAR1 and how much of it is used",),
        remedies=(
            Remedy(step="look", target="gpu", text="Check how large the window is.", command=confirm),
            run_why(reading, "Check whether `vram why` reports BAR1 as exhausted."),
            change("Register less memory at once, and deregister what is no longer used."),
            change("Enable Resizable BAR (Above 4G decoding) in the machine's firmware.", target="host"),
        ),
    )


@kind("host", "host memory, not the GPU's")
def host(reading: OomMessage, worked: Sums) -> Judgement | None:
    """host: host memory ran out, not the GPU's

    What it is:
    Pinned buffers, data loaders, NumPy arrays and checkpoints that are being loaded are in host memory. When
    it runs out, the kernel kills a process; a job scheduler or a container kills it at its own limit; and
    drivers report a failed pinned allocation as "out of memory" without saying which memory.

    How it is recognised:
    By its source: the kernel, a scheduler, a CPU allocator, or a call that pins memory. If such a call is
    only in the frames above the error, it is likely, not certain: CUDA reports errors late.

    Remedies:
    Pin less (pin_memory=False), use fewer workers, give the job more host memory, or make /dev/shm larger for
    workers that share tensors. Nothing on the GPU needs to be freed.
    """
    if reading.where not in ("host", "pinned"):
        return None
    return host.conclude(
        "likely" if reading.wording == "shell" or "by-frames" in reading.signs else "fact",
        _host_cause(reading),
        title="pinned host memory" if reading.where == "pinned" else host.title,
        workings=shortfall(reading),
        remedies=(_check_host(), *_host_remedies(reading)),
    )


def _host_cause(reading: OomMessage) -> str:
    if reading.where == "pinned":
        amount = f" of {say(reading.asked)}" if reading.asked else ""
        failed = "failed, judging by the frames above the error" if "by-frames" in reading.signs else "failed"
        return (
            f"A pinned allocation{amount} {failed}. It uses host memory and is limited by how much the"
            " kernel lets a process lock; free GPU memory does not matter."
        )
    if reading.wording in ("python", "bad_alloc"):
        who = "Python" if reading.wording == "python" else "The C++ runtime"
        return (
            f"{who} could not allocate host memory. The message has no figures: the machine, its container or"
            " a limit of the process (ulimit -v) had no more to give. The GPU's memory is not involved."
        )
    if "shared-memory" in reading.signs:
        return "A data loader's worker ran out of /dev/shm, the shared memory between processes."
    if "killed" in reading.signs:
        why = "because host memory ran out"
        if "bounded" in reading.signs:
            why = "at the host memory limit of its job or container; the machine may have more"
        held = f" It held {say(reading.live)}." if reading.live else ""
        unsure = " or somebody sent SIGKILL." if reading.wording == "shell" else "."
        return f"The process was killed {why}{unsure if held == '' else '.'}{held}"
    return f"An allocation of {say(reading.asked)} in host memory failed."


def _check_host() -> Remedy:
    text = "Check how much host memory is left, and what the kernel killed."
    return Remedy(step="look", target="host", text=text, command="free -h; sudo dmesg --ctime | grep -i oom")


def _host_remedies(reading: OomMessage) -> tuple[Remedy, ...]:
    if reading.where == "pinned":
        loader = "pin_memory=False in the DataLoader, " if reading.language == "python" else ""
        less = change(f"Pin less: {loader}smaller staging buffers.")
        if reading.dialect == "llama.cpp":
            text = "llama.cpp continues without pinning, only slower. To skip the attempt:"
            less = change(text, "export GGML_CUDA_NO_PINNED=1")
        return (
            less,
            Remedy(
                step="look", target="host", text="Check how much memory may be locked.", command="ulimit -l"
            ),
        )
    if "shared-memory" in reading.signs:
        text = "Give the container more: docker run --shm-size=16g, or an emptyDir of medium Memory."
        return (
            Remedy(step="look", target="host", text="Check how full it is.", command="df -h /dev/shm"),
            change(text, target="container"),
            change("Or use fewer workers, or torch.multiprocessing.set_sharing_strategy('file_system')."),
        )
    advice = [
        change("Use less host memory: fewer workers, smaller prefetch, memory-mapped or sharded loading.")
    ]
    if reading.dialect == "llama.cpp":
        advice = [
            change(
                "Use a shorter context, a smaller model or a smaller quantization, or keep more layers on the"
                " GPU (num_gpu in Ollama, -ngl in llama.cpp)."
            ),
            change("In a container: give it more memory, docker run --memory=SIZE.", target="container"),
        ]
    if reading.wording == "numpy":
        advice = [
            change("Use a smaller type (float32 instead of float64), or work in parts."),
            change("Or keep the array in a file: numpy.memmap, numpy.load(..., mmap_mode='r')."),
        ]
    if reading.wording in ("slurm", "srun"):
        advice.append(change("Ask the scheduler for more host memory: sbatch --mem=SIZE.", target="job"))
    if reading.wording == "kubernetes":
        advice.append(change("Raise resources.limits.memory of the pod.", target="pod"))
    if reading.wording == "kernel" and "bounded" in reading.signs:
        advice.append(change("Give the container more: docker run --memory=SIZE.", target="container"))
    return tuple(advice)

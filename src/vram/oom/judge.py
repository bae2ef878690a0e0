"""Which kind of out-of-memory a message is, by its own figures."""

from __future__ import annotations

from msgspec.structs import replace

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomMessage
from vram.oom import remedies, sums
from vram.oom.kinds import Kind, capacity, holders, kind, not_gpu_memory
from vram.oom.remedies import JOIN_LIVE, change, options, pool_size, record_next, run_why
from vram.oom.sums import Sums, say, shortfall

# How JAX and TensorFlow say that their pool ran out, and not the driver or the compiler.
POOLED_WORDINGS = frozenset(("run time", "request", "pool", "kernel", "tensor", "operation"))
NEEDED = {
    "asked": "the size of the failed allocation",
    "total": "the size of the GPU",
    "free": "how much of it was free",
    "live": "how much this program used",
}


@kind("unknown", "the message does not say enough")
def unknown(reading: OomMessage, worked: Sums) -> Judgement:
    """unknown: the message does not say enough

    What it is:
    Raw CUDA, Numba and PyCUDA say only "out of memory"; messages get truncated; sometimes the figures
    themselves show that it would have fit. Then vram does not guess.

    How it is recognised:
    A figure that the arithmetic needs is missing; the answer says which one, and how to get it.

    Remedies:
    Run `vram why` or `vram oom --live` on the machine while its GPU is still full, and let vram.on_oom(), in
    C++ vram::explain_oom(), record the next one.
    """
    missing = tuple(words for name, words in NEEDED.items() if getattr(reading, name) is None)
    return unknown.conclude(
        "unknown",
        _unknown_cause(reading, missing),
        workings=shortfall(reading),
        missing=missing,
        remedies=(
            JOIN_LIVE,
            run_why(reading),
            *(pool_size(reading) if reading.wording in POOLED_WORDINGS else ()),
            *(options(reading) or record_next(reading)),
            *_contradiction(reading),
        ),
    )


def _fitted(reading: OomMessage) -> bool:
    return (
        reading.asked is not None and reading.free is not None and reading.free.nbytes >= reading.asked.nbytes
    )


def _is_from_the_start(reading: OomMessage) -> bool:
    """What llama.cpp and Ollama print as free was so before the model was loaded."""
    return reading.dialect == "llama.cpp" and reading.free is not None and reading.live is None


def _unknown_cause(reading: OomMessage, missing: tuple[str, ...]) -> str:
    if _is_from_the_start(reading):
        asked = f", and {say(reading.asked)} was requested later" if reading.asked else ""
        return (
            f"{say(reading.free)} was free before the model was loaded{asked}. The log does not say how much"
            " the model had taken by then, or whether another program took memory meanwhile."
        )
    if reading.dialect in ("xla", "tensorflow") and reading.wording in POOLED_WORDINGS:
        return _pool_cause(reading)
    if _fitted(reading):
        return (
            f"{say(reading.asked)} was requested and {say(reading.free)} was free when the message was"
            " printed. Memory was freed in between, or the driver refused for another reason: the host's"
            " commit limit on Windows and WSL2, or a container's own limit."
        )
    if not missing:
        return (
            "All figures are known, but no single cause stands out: several small amounts add up to the"
            " shortfall."
        )
    return "The GPU was out of memory. Without more figures it is unknown who held the memory."


def _pool_cause(reading: OomMessage) -> str:
    """JAX and TensorFlow allocate from a pool that they took at their start."""
    if reading.dialect == "tensorflow":
        return (
            "TensorFlow's pool had no room left. By default it takes nearly the whole GPU at the start, so"
            " either this program filled it, or others had taken the rest of the GPU before. The message does"
            " not say how large the pool is."
        )
    if remedies.grows(reading):
        return (
            "JAX's pool could not grow any further. It was told not to preallocate"
            " (XLA_PYTHON_CLIENT_PREALLOCATE), so this program, others, or both had filled the GPU."
        )
    return (
        "JAX's pool had no room left. By default JAX preallocates 75% of the GPU at its start"
        " (XLA_PYTHON_CLIENT_PREALLOCATE), or less where others hold it, and asks for no more. The message"
        " does not say how large the pool is."
    )


def _contradiction(reading: OomMessage) -> tuple[Remedy, ...]:
    if not _fitted(reading) or _is_from_the_start(reading):
        return ()
    return (change("Try again: if it fits now, another process held the memory for a moment."),)


# The certain before the likely. The last one judges what no other did.
KINDS: tuple[Kind, ...] = (
    not_gpu_memory.broken_context,
    not_gpu_memory.on_chip,
    not_gpu_memory.bar1,
    not_gpu_memory.host,
    capacity.limit,
    holders.cached,
    holders.fragmented,
    capacity.too_large,
    holders.ghost,
    holders.other_process,
    holders.context,
    unknown,
)


def judge(reading: OomMessage) -> Judgement:
    """Return which kind of out-of-memory *reading* is, with the arithmetic and what to do."""
    worked = sums.work_out(reading)
    for each in KINDS:
        judgement = each.judge(reading, worked)
        if judgement is not None:
            return replace(
                judgement,
                balance=sums.balance(reading, worked),
                remedies=remedies.ordered(judgement.remedies),
            )
    raise AssertionError("the last kind judges everything")

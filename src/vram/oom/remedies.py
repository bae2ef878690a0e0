"""What to do about an out-of-memory: text and commands to paste, calculated from its figures.

Nothing of the message but numbers enters a command, and of the call only the name of the log, quoted.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from vram.diagnosis.remedies import ordered
from vram.model.finding import Harm, Remedy
from vram.model.oom import OomMessage
from vram.oom.programs import PROGRAMS
from vram.oom.sums import Sums, usual_context
from vram.units import size

__all__ = ["ordered"]

# Read the message again beside the ledger of the machine where it happened.
JOIN_LIVE = Remedy(
    step="look",
    target="host",
    text="Run this on the machine where it happened, while its GPU is still full: it fills in what is"
    " missing.",
    command="vram oom --live",
)
# Left for contexts and rounding when a fraction of the GPU is worked out.
MARGIN = 0.01


def change(text: str, command: str = "", *, target: str = "program", harm: Harm = "none") -> Remedy:
    """Something to change in the program that failed, or in how it is started."""
    return Remedy(step="change", target=target, text=text, command=command, harm=harm)


_RECORD = {
    "python": change(
        "Record the next one where it happens: call vram.on_oom() in the program. It writes the memory"
        " of this process and of the whole GPU to a file."
    ),
    "c++": change(
        "Let the program say more the next time: arrays of vram.hpp throw what was requested and what was"
        " free, and vram::explain_oom() prints who holds it. `vram --include` says where the header is."
    ),
    None: change(
        "Record the next one where it happens: vram.on_oom() in Python, vram::explain_oom() of vram.hpp in"
        " C++. Both say who holds the memory at that moment."
    ),
}
# CUDA's messages rarely say which GPU, and their numbers are not those of other tools.
_NUMBERS = change(
    "With several GPUs: CUDA counts the fastest one first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, and"
    " CUDA_VISIBLE_DEVICES renumbers them. `vram oom --live --gpu ADDRESS` takes a PCI address."
)
RETRY = change(
    "Let vram find the size that fits: decorate the step with @vram.retry_on_oom(shrink='batch_size')."
)
BIGGER = change("Spread it over more GPUs, keep part of it in host memory, or use a larger GPU.")


def record_next(reading: OomMessage) -> tuple[Remedy, ...]:
    """How to learn more of the next one, in the program's own language."""
    numbers = () if reading.language == "python" or reading.where != "device" else (_NUMBERS,)
    return (_RECORD[reading.language], *numbers)


def run_why(reading: OomMessage, text: str = "Show who holds this GPU's memory now, and why.") -> Remedy:
    """Read the ledger: changes nothing."""
    return Remedy(step="look", target=_gpu(reading), text=text, command="vram why" + _option(reading))


def make_room(reading: OomMessage) -> Remedy:
    """Let vram free memory: it shows its plan before it does anything.

    Without a size: only on the machine where it happened is it known how much can be freed.
    """
    text = "Free memory of dead processes and unused caches of live ones: vram shows a plan and asks first."
    return Remedy(
        step="free", target=_gpu(reading), text=text, command=f"vram free --caches{_option(reading)}"
    )


def naming(file: str, advice: Sequence[Remedy]) -> tuple[Remedy, ...]:
    """Return *advice* with the log's name in the command that reads it once more."""
    word = shlex.quote(f"./{file}" if file.startswith("-") else file)
    named = replace(JOIN_LIVE, command=f"{JOIN_LIVE.command} {word}")
    return tuple(named if remedy == JOIN_LIVE else remedy for remedy in advice)


def use_less(reading: OomMessage, room: int | None) -> tuple[Remedy, ...]:
    """Use less than *room*: by the options of the program, or by what its author can change."""
    if reading.program is None:
        retry = (RETRY,) if reading.language == "python" else ()
        return (smaller(reading, room), *retry, BIGGER)
    options = [change(text) for text in PROGRAMS[reading.program].options]
    if reading.program == "tgi" and reading.tokens_wanted:
        # What text-generation-inference itself advises, with a number.
        which = "total" if reading.wording == "total tokens" else "prefill"
        half = max(1, reading.tokens_wanted // 2)
        options[0] = change(f"Allow smaller batches: --max-batch-{which}-tokens {half}.")
    wanted = _wanted(reading, room)
    if wanted and room and size(wanted) != size(room):
        options.insert(0, change(f"Use less: {size(wanted)} is needed and {size(room)} is available."))
    return tuple(options)


def options(reading: OomMessage) -> tuple[Remedy, ...]:
    """The options of the program, where the message is from one that has some."""
    return use_less(reading, None) if reading.program else ()


def smaller(reading: OomMessage, room: int | None) -> Remedy:
    """Ask for less: by how much follows from the figures, where they are known."""
    wanted = _wanted(reading, room)
    if wanted is None or room is None:
        if reading.language != "python":
            return change("Use less: work in smaller parts, and free what is not needed meanwhile.")
        return change(
            "Use less: a smaller batch, shorter sequences, lower precision, activation checkpointing."
        )
    if reading.live is None:
        return change(f"Use less: {size(wanted)} was requested at once, and {size(room)} is available.")
    factor = room / wanted
    return change(
        f"Use less: {size(wanted)} is needed and {size(room)} is available. If memory grows with the batch,"
        f" at most {factor:.0%} of the batch fits (32 becomes {max(1, int(32 * factor))})."
    )


def _wanted(reading: OomMessage, room: int | None) -> int | None:
    """What is used and requested, where it is known to be more than *room*."""
    if not room or reading.asked is None:
        return None
    wanted = reading.asked.nbytes + (reading.live.nbytes if reading.live else 0)
    return wanted if wanted > room else None


def defragment(reading: OomMessage) -> tuple[Remedy, ...]:
    """Let the allocator join its pieces."""
    if reading.dialect in ("xla", "tensorflow", "bfc"):
        text = "Use the driver's own pool, which can map separate pieces together."
        command = "export TF_GPU_ALLOCATOR=cuda_malloc_async"
        if reading.dialect == "xla":
            command = "export XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"
        return (change(text, command),)
    if "expandable" in reading.signs:
        return (change("expandable_segments is already on: free and allocate in the same order and sizes."),)
    name = "PYTORCH_ALLOC_CONF" if "alloc-conf" in reading.signs else "PYTORCH_CUDA_ALLOC_CONF"
    if "hip" in reading.signs and name != "PYTORCH_ALLOC_CONF":
        name = "PYTORCH_HIP_ALLOC_CONF"
    text = "Let segments grow instead of splitting memory (PyTorch 2.1 and later), and restart the program."
    grow = change(text, f"export {name}=expandable_segments:True")
    if reading.wording not in ("0.4-1.3", "1.4-2.0"):
        return (grow,)
    older = "Before 2.1: keep large blocks from being split."
    return (grow, change(older, f"export {name}=max_split_size_mb:128"))


_JAX_GROWS = change("JAX: do not preallocate the GPU.", "export XLA_PYTHON_CLIENT_PREALLOCATE=false")
_TENSORFLOW_GROWS = change(
    "TensorFlow: let its pool grow as needed.", "export TF_FORCE_GPU_ALLOW_GROWTH=true"
)


def grows(reading: OomMessage) -> bool:
    """Whether the log says that JAX was told not to preallocate."""
    return dict(reading.settings).get("preallocate", "").lower() in ("false", "0")


def pool_size(reading: OomMessage) -> tuple[Remedy, ...]:
    """Give a pool that is taken at the start more, or take it step by step."""
    if reading.dialect == "tensorflow":
        return (_TENSORFLOW_GROWS,)
    if reading.dialect != "xla" or grows(reading):
        return ()
    more = change(
        "JAX: take more of the GPU than 75%, if nobody else needs it.",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.95",
    )
    return (more, _JAX_GROWS)


def release_caches(reading: OomMessage) -> tuple[Remedy, ...]:
    """Release what the program itself only caches."""
    if reading.dialect in ("tensorflow", "xla", "bfc") or "pool-took-all" in reading.signs:
        return (_JAX_GROWS, _TENSORFLOW_GROWS)
    if reading.language != "python":
        text = "Release what pools keep unused before this point: cudaMemPoolTrimTo, or vram::trim_pools()."
        return (change(text),)
    text = (
        "Release the framework's unused cache before this point: vram.flush(), or"
        " torch.cuda.empty_cache() and cupy.get_default_memory_pool().free_all_blocks()."
    )
    return (change(text),)


def utilization(reading: OomMessage) -> tuple[Remedy, ...]:
    """vLLM's share of the GPU that fits what was free."""
    if reading.free is None or reading.total is None or reading.total.nbytes == 0:
        return ()
    share = int(100 * (reading.free.nbytes / reading.total.nbytes - MARGIN)) / 100
    if share <= 0.05:
        return ()
    text = (
        f"Or use only the {size(reading.free.nbytes)} that was free: start vLLM with"
        f" --gpu-memory-utilization {share:.2f}."
    )
    return (change(text),)


def end(pids: Sequence[int]) -> tuple[Remedy, ...]:
    """End processes that the message names, with `vram kill`, which checks who they are."""
    if not pids:
        return ()
    words = " ".join(map(str, pids))
    text = "If they are leftovers of yours: terminate them. Unsaved work is lost."
    if len(pids) == 1:
        text = "If it is a leftover of yours: terminate it. Unsaved work is lost."
    return (
        Remedy(
            step="end",
            target=f"pid {words}",
            text=text,
            command=f"vram kill {words}",
            harm="loses-work",
            pids=tuple(pids),
        ),
    )


def room_alone(reading: OomMessage, worked: Sums) -> int | None:
    """What this program could have on a GPU without other processes."""
    if reading.total is None:
        return reading.limit.nbytes if reading.limit else None
    context = usual_context(reading) if worked.outside is None else worked.outside
    return max(0, reading.total.nbytes - min(context, reading.total.nbytes // 8))


def _option(reading: OomMessage) -> str:
    return "" if reading.gpu is None else f" --gpu {reading.gpu}"


def _gpu(reading: OomMessage) -> str:
    return "gpu" if reading.gpu is None else f"gpu {reading.gpu}"

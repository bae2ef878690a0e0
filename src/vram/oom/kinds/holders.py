"""Memory that is held: by others, outside every allocator, or by this program's own pools."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomMessage, Term, Working
from vram.oom.kinds import kind
from vram.oom.remedies import (
    JOIN_LIVE,
    change,
    defragment,
    end,
    make_room,
    options,
    record_next,
    release_caches,
    run_why,
    utilization,
)
from vram.oom.sums import (
    CONTEXT,
    MANY_TIMES,
    WASTE,
    Figures,
    Sums,
    blamed,
    calculate,
    say,
    shortfall,
    usual_context,
)

_OTHER_GPU = change("Or start on another GPU: CUDA_VISIBLE_DEVICES=N.")
_TIDY = change("Vary sizes less: pad or bucket inputs, and allocate the largest first.")


@kind("ghost", "held by an unlisted process")
def ghost(reading: OomMessage, worked: Sums) -> Judgement | None:
    """ghost: memory is in use by a process that no list shows

    What it is:
    The processes that the driver lists hold less than is in use. The rest is held by a process that no list
    shows: a forked child of a dead process, a process that has an exported handle or a dma-buf open without
    a context, or a process that is not visible from inside this container.

    How it is recognised:
    total - free - this process - all listed processes is far more than the driver reserves for itself, and
    would have been enough.

    How to confirm:
    `vram why` on that machine names the holder (findings VR101 to VR104), and `vram oom --live` combines it
    with the message.

    Remedies:
    `vram free` frees memory whose owner is dead. Resetting the GPU does not help while the holder is alive.
    """
    if blamed(reading, worked) != "ghost":
        return None
    return ghost.conclude(
        "likely",
        f"{say(worked.unnamed)} is in use by none of the processes that the message lists: it"
        " belongs to a dead process, or to one that is not visible from where this ran.",
        workings=(*shortfall(reading), _on_no_list(reading, worked)),
        remedies=(
            JOIN_LIVE,
            run_why(reading, "Find the holder: vram reads open files, not only the driver's list."),
            make_room(reading),
        ),
    )


def _on_no_list(reading: OomMessage, worked: Sums) -> Working:
    assert reading.total is not None
    assert reading.free is not None
    ours = max(reading.process.nbytes if reading.process else 0, worked.reserved or 0)
    less: Figures = {"free": reading.free, "this process": ours, "listed processes": worked.named or None}
    return calculate("on no list", {"total": reading.total}, less)


@kind("other-process", "held by another process")
def other_process(reading: OomMessage, worked: Sums) -> Judgement | None:
    """other-process: it would have fit without the other processes on the GPU

    What it is:
    What this program uses and requested fits the GPU. Other processes hold what is missing: another job, a
    notebook that was left open, a worker of an earlier run, a desktop.

    How it is recognised:
    PyTorch 2.1 and later list the processes with their sizes. For older messages it follows from
    total - free - reserved, minus one context.

    Remedies:
    See who they are (`vram why`), then let vram make room: `vram free SIZE --caches` plans to terminate
    holders of dead processes' memory and to release caches. Or use another GPU.
    """
    if reading.dialect == "vllm" and reading.wording == "startup":
        return _before_vllm(reading)
    if reading.dialect == "sglang" and reading.wording == "unbalanced":
        return _unbalanced(reading)
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _pool_below_limit(reading)
    if blamed(reading, worked) != "other-process":
        return None
    return other_process.conclude(
        "fact" if worked.named else "likely",
        _other_process_cause(reading, worked),
        workings=(*shortfall(reading), *_held_by_others(reading, worked)),
        remedies=(
            run_why(reading),
            make_room(reading),
            *end([share.pid for share in worked.listed]),
            _OTHER_GPU,
        ),
    )


def _other_process_cause(reading: OomMessage, worked: Sums) -> str:
    if not worked.listed:
        pool = ", or unused memory of this program's own pool" if "driver-pool" in reading.signs else ""
        return (
            f"About {say(worked.unnamed)} is in use beyond this program's allocator and its context. The"
            f" message does not say whose it is: other processes, memory left by dead ones{pool}."
        )
    largest = max(worked.listed, key=lambda share: share.nbytes.nbytes if share.nbytes else 0)
    if len(worked.listed) == 1:
        return f"Process {largest.pid} held {say(largest.nbytes)}. Without it, the allocation would have fit."
    return (
        f"{len(worked.listed)} other processes held {say(worked.named)}, process {largest.pid} alone"
        f" {say(largest.nbytes)}. Without them, the allocation would have fit."
    )


def _held_by_others(reading: OomMessage, worked: Sums) -> tuple[Working, ...]:
    if worked.listed or reading.total is None or reading.free is None or worked.reserved is None:
        return ()
    one = "one context" if usual_context(reading) else "one context, as on NVIDIA"
    terms = (
        Term("total", reading.total.nbytes),
        Term("free", -reading.free.nbytes),
        Term("this program's allocator", -worked.reserved),
        Term(one, -CONTEXT, sure=False),
    )
    return (Working(terms, "held by others", sum(term.nbytes for term in terms)),)


def _before_vllm(reading: OomMessage) -> Judgement:
    """vLLM measures before it allocates: what is not free then belongs to others."""
    workings, held = shortfall(reading), None
    if reading.total and reading.free:
        before = calculate("held before vLLM started", {"total": reading.total}, {"free": reading.free})
        workings, held = (*workings, before), before.nbytes
    return other_process.conclude(
        "likely",
        f"{say(held)} was in use before vLLM started, so its share of the GPU"
        f" ({reading.utilization}) was not available.",
        workings=workings,
        remedies=(run_why(reading), make_room(reading), *utilization(reading)),
    )


def _unbalanced(reading: OomMessage) -> Judgement:
    """SGLang compares the GPUs of a group before it loads anything."""
    workings: tuple[Working, ...] = ()
    held = "memory"
    if reading.free and reading.asked:
        there = calculate("held there", {"free here": reading.asked}, {"free on the fullest": reading.free})
        workings, held = (there,), f"at least {say(there.nbytes)}"
    return other_process.conclude(
        "likely",
        f"Before SGLang started, other processes held {held} on one of the GPUs that it wants to use"
        " together, or that GPU is smaller.",
        workings=workings,
        remedies=(
            run_why(reading),
            make_room(reading),
            change("Or choose GPUs that are equally free: CUDA_VISIBLE_DEVICES=N,M."),
        ),
    )


def _pool_below_limit(reading: OomMessage) -> Judgement | None:
    """A pool that stays below its own limit because the driver has no more memory."""
    asked, limit, live, idle = reading.asked, reading.limit, reading.live, reading.idle
    if not (asked and limit and live and idle) or live.nbytes + idle.nbytes + asked.nbytes > limit.nbytes:
        return None
    less = {"in use": live, "kept unused": idle, "asked": asked}
    return other_process.conclude(
        "likely",
        f"The pool may grow to {say(limit)} but has only reached"
        f" {say(live.nbytes + idle.nbytes)}: the driver had no more, so other processes hold it.",
        workings=(calculate("below the limit", {"limit of the pool": limit}, less),),
        remedies=(run_why(reading), make_room(reading), *release_caches(reading)),
    )


@kind("context", "a context or a workspace")
def context(reading: OomMessage, worked: Sums) -> Judgement | None:
    """context: memory of this process outside its allocator

    What it is:
    A CUDA context with loaded code uses about half a gigabyte before any work. cuBLAS and cuDNN need
    workspaces, NCCL needs buffers for every channel and peer, and other libraries in the same process have
    their own pools. None of it comes from the framework's allocator, so the framework does not empty its
    cache for it.

    How it is recognised:
    Creating a library's handle, a workspace or the context itself failed; or the driver charges the process
    with much more than its allocator and a context account for.

    Remedies:
    Leave room for them: empty the cache before they are first used, create the handles early, limit the
    workspace, limit the framework's share of the GPU.
    """
    if "context" in reading.signs:
        return _no_context(reading)
    if "workspace" in reading.signs:
        return _workspace(reading)
    if blamed(reading, worked) != "context":
        return None
    return _outside_allocator(reading, worked)


def _no_context(reading: OomMessage) -> Judgement:
    return context.conclude(
        "likely",
        "The context itself could not be created, before any allocation: less was free than the"
        " half gigabyte that a context needs. Other processes hold the rest.",
        title="no room for a context",
        missing=("how much was free", "who held the rest"),
        remedies=(run_why(reading), make_room(reading), _OTHER_GPU),
    )


def _workspace(reading: OomMessage) -> Judgement:
    amount = f" ({say(reading.asked)})" if reading.asked else ""
    found, it_is, them = f"A {reading.wording}", "It is", "it"
    if reading.dialect == "nccl":
        found, it_is, them = "NCCL's buffers", "They are", "them"
    return context.conclude(
        "likely",
        f"{found}{amount} did not fit. {it_is} allocated from the driver directly, so "
        + ("the framework's cached memory" if reading.language == "python" else "memory that pools keep")
        + f" cannot be used for {them}.",
        title="no room for a library's workspace",
        missing=("how much was free", "how much the framework's cache held"),
        remedies=(*release_caches(reading), *_bounds(reading), run_why(reading)),
    )


def _bounds(reading: OomMessage) -> tuple[Remedy, ...]:
    if reading.dialect == "nccl":
        text = "Give NCCL smaller buffers (4 MiB each by default), or fewer channels."
        share = "Leave room for it: torch.cuda.set_per_process_memory_fraction(0.95) before training."
        return (
            *((change(share),) if reading.language == "python" else ()),
            change(text, "export NCCL_BUFFSIZE=2097152 NCCL_MAX_NCHANNELS=8"),
        )
    if reading.library == "cuBLAS":
        return (change("Limit cuBLAS's workspace.", "export CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8"),)
    return (change("Create handles early: run one small step of each kind before the large ones."),)


def _outside_allocator(reading: OomMessage, worked: Sums) -> Judgement:
    assert reading.process is not None or worked.listed is not None
    outside, reserved = worked.outside or 0, worked.reserved or 0
    whole = {"this process in all": outside + reserved}
    beyond = calculate("outside the allocator", whole, {"its allocator": reserved})
    return context.conclude(
        "likely",
        f"This process holds {say(outside)} outside its allocator; a context accounts for about"
        f" {say(CONTEXT)}. The rest belongs to other libraries in it: workspaces, NCCL, a second"
        " framework's pool.",
        title="this process, outside its allocator",
        workings=(*shortfall(reading), beyond),
        remedies=(
            change(
                "Find the library: vram.scope around its first use shows what it allocates outside every"
                " framework."
            ),
            *release_caches(reading),
            change(
                "If a second framework runs in the same process, limit its pool.",
                "export XLA_PYTHON_CLIENT_PREALLOCATE=false",
            ),
        ),
    )


@kind("cached", "kept by this program's own pools")
def cached(reading: OomMessage, worked: Sums) -> Judgement | None:
    """cached: memory that this program holds but does not use

    What it is:
    Frameworks keep freed memory in order to use it again. The same allocator can, but nobody else in the
    process: not a CUDA library that needs a handle after TensorFlow or JAX has preallocated the GPU, and not
    an eager allocation while captured CUDA graphs keep their private pools.

    How it is recognised:
    The message reports private pools that would have been large enough; or creating a library's handle failed
    in a program whose framework preallocates.

    Remedies:
    Let the pool start small, release it before the other allocation (vram.flush()), drop graphs that are no
    longer replayed. From outside, `vram trim PID` makes a running process release its caches.
    """
    if "pool-took-all" in reading.signs:
        return _no_room_for_handle(reading)
    if reading.pooled is None or reading.asked is None or reading.free is None:
        return None
    needed = reading.asked.nbytes - reading.free.nbytes - (reading.idle.nbytes if reading.idle else 0)
    if not 0 < needed <= reading.pooled.nbytes:
        return None
    unused = {"pools of CUDA graphs": reading.pooled, "kept unused": reading.idle}
    missing = {"missing": reading.asked.nbytes - reading.free.nbytes}
    return cached.conclude(
        "fact",
        f"{say(reading.pooled)} is in private pools of captured CUDA graphs. It is kept for"
        " replays, and no other allocation can use it.",
        workings=(*shortfall(reading), calculate("would be left", unused, missing)),
        remedies=(
            change("Drop graphs that are no longer replayed, or capture fewer sizes."),
            change("Let graphs share one pool: torch.cuda.graph(g, pool=first.pool())."),
            change(
                "Run without graphs: mode='default' instead of 'reduce-overhead', --enforce-eager in vLLM."
            ),
        ),
    )


def _no_room_for_handle(reading: OomMessage) -> Judgement:
    return cached.conclude(
        "likely",
        f"{reading.library} could not allocate what it needs on the GPU. This program's framework"
        " preallocates most of the GPU and releases nothing, so other libraries find no room.",
        missing=("how much the framework's pool had allocated", "how much was free"),
        remedies=release_caches(reading),
    )


@kind("fragmented", "enough was unused, but fragmented")
def fragmented(reading: OomMessage, worked: Sums) -> Judgement | None:
    """fragmented: enough is unused, but not in one piece

    What it is:
    An allocation needs one contiguous piece of address space. A caching allocator splits large blocks into
    small ones; while a few of them stay in use, the rest of the block can be neither merged nor freed.

    How it is recognised:
    The allocator's unused memory and the free memory together would have been enough, and are more than the
    usual waste, or several times the request. PyTorch frees every whole block before it prints its message,
    so the memory that it still calls reserved but unallocated is between live tensors.

    Remedies:
    expandable_segments (PyTorch), cuda_malloc_async (TensorFlow), cuda_async (JAX): the driver maps separate
    pieces together. Fewer different sizes help too: pad or bucket inputs, allocate the largest first.
    """
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _fragmented_pool(reading)
    asked, idle, free = reading.asked, reading.idle, reading.free
    if not (asked and idle and free and worked.reserved and worked.fits_alone is not False):
        return None
    # Many times what was asked for is waste worth naming where others would be blamed instead.
    others = blamed(reading, worked)
    usual_waste = idle.nbytes < WASTE * worked.reserved
    if others is not None and idle.nbytes >= MANY_TIMES * asked.nbytes:
        usual_waste = False
    if free.nbytes >= asked.nbytes + worked.slack or usual_waste:
        return None
    if idle.nbytes + free.nbytes + worked.slack < asked.nbytes:
        return None
    unused = {"unused, in pieces": idle, "free": free.nbytes or None}
    beside = ""
    if others == "other-process" and worked.named:
        beside = f" Other processes held {say(worked.named)}: without them it would have fit, too."
    elif others is not None and worked.unnamed:
        beside = (
            f" About {say(worked.unnamed)} is in use beyond this program: without that it would fit, too."
        )
    return fragmented.conclude(
        "fact" if idle.nbytes >= asked.nbytes else "likely",
        f"The allocator holds {say(idle)} that no tensor uses, but no single piece of it is"
        f" {say(asked)} long.{beside}",
        workings=(*shortfall(reading), _left(unused, {"asked": asked})),
        remedies=(
            *defragment(reading),
            *(options(reading) or (_TIDY, *record_next(reading))),
            *((run_why(reading),) if beside else ()),
        ),
    )


def _fragmented_pool(reading: OomMessage) -> Judgement | None:
    """TensorFlow's and XLA's pool has one limit; what is not in use below it lies in pieces."""
    asked, limit, live = reading.asked, reading.limit, reading.live
    if not (asked and limit and live) or live.nbytes + asked.nbytes > limit.nbytes:
        return None
    if reading.idle is not None and reading.idle.nbytes + live.nbytes + asked.nbytes <= limit.nbytes:
        return None  # the pool had not even grown that far: the GPU was full, not the pool
    largest = f"; the largest free piece is {say(reading.largest_free)}" if reading.largest_free else ""
    return fragmented.conclude(
        "fact" if reading.largest_free or reading.idle else "likely",
        f"The pool may grow to {say(limit)} and uses {say(live)}, so {say(asked)} would fit{largest}.",
        workings=(_left({"limit of the pool": limit}, {"in use": live, "asked": asked}),),
        remedies=(*defragment(reading), _TIDY),
    )


def _left(unused: Figures, asked: Figures) -> Working:
    rest = calculate("would be left", unused, asked)
    return rest if rest.nbytes >= 0 else Working(rest.terms, "missing, within rounding", -rest.nbytes)

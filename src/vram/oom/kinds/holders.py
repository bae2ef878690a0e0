"""Memory that others hold, or that no allocator counts: ghost, other-process, context."""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomReading, Term, Working
from vram.oom.kinds import kind
from vram.oom.remedies import (
    change,
    end,
    join_live,
    make_room,
    release_caches,
    run_why,
    utilization,
)
from vram.oom.sums import CONTEXT, Sums, blamed, said, shortfall, usual_context


@kind("ghost", "held by an unlisted process")
def ghost(reading: OomReading, worked: Sums) -> Judgement | None:
    """ghost: memory is in use by a process that no list shows

    What it is
    ----------
    The processes that the driver lists hold less than is in use. The rest is held by a process that no list
    shows: a forked child of a dead process, a process that has an exported handle or a dma-buf open without
    a context, or a process that is not visible from inside this container.

    How it is recognised
    --------------------
    total - free - this process - all listed processes is far more than the driver reserves for itself, and
    would have been enough.

    How to confirm
    --------------
    `vram why` on that machine names the holder (findings VR101 to VR104), and `vram oom --live` combines it
    with the message.

    Remedies
    --------
    `vram free` frees memory whose owner is dead. Resetting the GPU does not help while the holder is alive.
    """
    if blamed(reading, worked) != "ghost":
        return None
    return Judgement(
        kind="ghost",
        certainty="likely",
        title=ghost.title,
        cause=f"{said(worked.unnamed)} is in use by none of the processes that the message lists: it"
        " belongs to a dead process, or to one that is not visible from where this ran.",
        workings=(*shortfall(reading), _on_no_list(reading, worked)),
        remedies=(
            join_live(),
            run_why(reading, "Find the holder: vram reads open files, not only the driver's list."),
            make_room(reading),
        ),
    )


def _on_no_list(reading: OomReading, worked: Sums) -> Working:
    assert reading.total is not None
    assert reading.free is not None
    ours = max(reading.process.nbytes if reading.process else 0, worked.reserved or 0)
    terms = (
        Term("total", reading.total.nbytes),
        Term("free", -reading.free.nbytes),
        Term("this process", -ours),
        *((Term("listed processes", -worked.named),) if worked.named else ()),
    )
    return Working(terms, "on no list", sum(term.nbytes for term in terms))


@kind("other-process", "held by another process")
def other_process(reading: OomReading, worked: Sums) -> Judgement | None:
    """other-process: it would have fit without the other processes on the GPU

    What it is
    ----------
    What this program uses and requested fits the GPU. Other processes hold what is missing: another job, a
    notebook that was left open, a worker of an earlier run, a desktop.

    How it is recognised
    --------------------
    PyTorch 2.1 and later list the processes with their sizes. For older messages it follows from
    total - free - reserved, minus one context.

    Remedies
    --------
    See who they are (`vram why`), then let vram make room: `vram free SIZE --caches` plans to terminate
    holders of dead processes' memory and to release caches. Or use another GPU.
    """
    if reading.dialect == "vllm" and reading.wording == "startup":
        return _before_vllm(reading, worked)
    if reading.dialect == "sglang" and reading.wording == "unbalanced":
        return _unbalanced(reading)
    if reading.dialect in ("tensorflow", "xla", "bfc"):
        return _pool_below_limit(reading)
    if blamed(reading, worked) != "other-process":
        return None
    return Judgement(
        kind="other-process",
        certainty="fact" if worked.named else "likely",
        title=other_process.title,
        cause=_other_process_cause(reading, worked),
        workings=(*shortfall(reading), *_held_by_others(reading, worked)),
        remedies=(
            run_why(reading),
            make_room(reading),
            *end([share.pid for share in worked.listed]),
            change("Or start on another GPU: CUDA_VISIBLE_DEVICES=N."),
        ),
    )


def _other_process_cause(reading: OomReading, worked: Sums) -> str:
    if not worked.listed:
        pool = ", or unused memory of this program's own pool" if "driver-pool" in reading.signs else ""
        return (
            f"About {said(worked.unnamed)} is in use beyond this program's allocator and its context. The"
            f" message does not say whose it is: other processes, memory left by dead ones{pool}."
        )
    largest = max(worked.listed, key=lambda share: share.nbytes.nbytes if share.nbytes else 0)
    if len(worked.listed) == 1:
        return (
            f"Process {largest.pid} held {said(largest.nbytes)}. Without it, the allocation would have fit."
        )
    return (
        f"{len(worked.listed)} other processes held {said(worked.named)}, process {largest.pid} alone"
        f" {said(largest.nbytes)}. Without them, the allocation would have fit."
    )


def _held_by_others(reading: OomReading, worked: Sums) -> tuple[Working, ...]:
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


def _before_vllm(reading: OomReading, worked: Sums) -> Judgement:
    """vLLM measures before it allocates: what is not free then belongs to others."""
    held = reading.total.nbytes - reading.free.nbytes if reading.total and reading.free else None
    workings = shortfall(reading)
    if reading.total and reading.free and held is not None:
        terms = (Term("total", reading.total.nbytes), Term("free", -reading.free.nbytes))
        workings = (*workings, Working(terms, "held before vLLM started", held))
    return Judgement(
        kind="other-process",
        certainty="likely",
        title=other_process.title,
        cause=f"{said(held)} was in use before vLLM started, so its share of the GPU"
        f" ({reading.utilization}) was not available.",
        workings=workings,
        remedies=(run_why(reading), make_room(reading), *utilization(reading)),
    )


def _unbalanced(reading: OomReading) -> Judgement:
    """SGLang compares the GPUs of a group before it loads anything."""
    least, most = reading.free, reading.asked
    terms = (
        (Term("free here", most.nbytes), Term("free on the fullest", -least.nbytes)) if least and most else ()
    )
    held = f" at least {said(sum(term.nbytes for term in terms))}" if terms else " memory"
    return Judgement(
        kind="other-process",
        certainty="likely",
        title=other_process.title,
        cause=f"Before SGLang started, other processes held{held} on one of the GPUs that it wants to use"
        " together, or that GPU is smaller.",
        workings=(Working(terms, "held there", sum(term.nbytes for term in terms)),) if terms else (),
        remedies=(
            run_why(reading),
            make_room(reading),
            change("Or choose GPUs that are equally free: CUDA_VISIBLE_DEVICES=N,M."),
        ),
    )


def _pool_below_limit(reading: OomReading) -> Judgement | None:
    """A pool that stays below its own limit because the driver has no more memory."""
    asked, limit, live, idle = reading.asked, reading.limit, reading.live, reading.idle
    if not (asked and limit and live and idle) or live.nbytes + idle.nbytes + asked.nbytes > limit.nbytes:
        return None
    terms = (
        Term("limit of the pool", limit.nbytes),
        Term("in use", -live.nbytes),
        Term("kept unused", -idle.nbytes),
        Term("asked", -asked.nbytes),
    )
    room = sum(term.nbytes for term in terms)
    return Judgement(
        kind="other-process",
        certainty="likely",
        title=other_process.title,
        cause=f"The pool may grow to {said(limit)} but has only reached"
        f" {said(live.nbytes + idle.nbytes)}: the driver had no more, so other processes hold it.",
        workings=(Working(terms, "below the limit", room),),
        remedies=(run_why(reading), make_room(reading), *release_caches(reading)),
    )


@kind("context", "a context or a workspace")
def context(reading: OomReading, worked: Sums) -> Judgement | None:
    """context: memory of this process outside its allocator

    What it is
    ----------
    A CUDA context with loaded code uses about half a gigabyte before any work. cuBLAS and cuDNN need
    workspaces, NCCL needs buffers for every channel and peer, and other libraries in the same process have
    their own pools. None of it comes from the framework's allocator, so the framework does not empty its
    cache for it.

    How it is recognised
    --------------------
    Creating a library's handle, a workspace or the context itself failed; or the driver charges the process
    with much more than its allocator and a context account for.

    Remedies
    --------
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


def _no_context(reading: OomReading) -> Judgement:
    return Judgement(
        kind="context",
        certainty="likely",
        title="no room for a context",
        cause="The context itself could not be created, before any allocation: less was free than the"
        " half gigabyte that a context needs. Other processes hold the rest.",
        missing=("how much was free", "who held the rest"),
        remedies=(run_why(reading), make_room(reading), _elsewhere()),
    )


def _workspace(reading: OomReading) -> Judgement:
    amount = f" ({said(reading.asked)})" if reading.asked else ""
    found, it_is, them = f"A {reading.wording}", "It is", "it"
    if reading.dialect == "nccl":
        found, it_is, them = "NCCL's buffers", "They are", "them"
    return Judgement(
        kind="context",
        certainty="likely",
        title="no room for a library's workspace",
        cause=f"{found}{amount} did not fit. {it_is} allocated from the driver directly, so the framework's"
        f" cached memory cannot be used for {them}.",
        missing=("how much was free", "how much the framework's cache held"),
        remedies=(*release_caches(reading), *_bounds(reading), run_why(reading)),
    )


def _bounds(reading: OomReading) -> tuple[Remedy, ...]:
    if reading.dialect == "nccl":
        text = "Give NCCL smaller buffers (4 MiB each by default), or fewer channels."
        return (
            change("Leave room for it: torch.cuda.set_per_process_memory_fraction(0.95) before training."),
            change(text, "export NCCL_BUFFSIZE=2097152 NCCL_MAX_NCHANNELS=8"),
        )
    if "cublas" in reading.signs:
        return (change("Limit cuBLAS's workspace.", "export CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8"),)
    return (change("Create handles early: run one small step of each kind before the large ones."),)


def _outside_allocator(reading: OomReading, worked: Sums) -> Judgement:
    assert reading.process is not None or worked.listed is not None
    outside = worked.outside or 0
    terms = (
        Term("this process in all", outside + (worked.reserved or 0)),
        Term("its allocator", -(worked.reserved or 0)),
    )
    return Judgement(
        kind="context",
        certainty="likely",
        title="this process, outside its allocator",
        cause=f"This process holds {said(outside)} outside its allocator; a context accounts for about"
        f" {said(CONTEXT)}. The rest belongs to other libraries in it: workspaces, NCCL, a second"
        " framework's pool.",
        workings=(*shortfall(reading), Working(terms, "outside the allocator", outside)),
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


def _elsewhere() -> Remedy:
    return change("Or start on another GPU: CUDA_VISIBLE_DEVICES=N.")

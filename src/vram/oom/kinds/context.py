"""context: memory of this process that no allocator counts

What it is
----------
A CUDA context with loaded code takes about half a gigabyte before any work. cuBLAS and cuDNN want
workspaces, NCCL wants buffers for every channel and peer, and other libraries in the same process have
pools of their own. None of it comes from the framework's allocator, so the framework cannot make room for
it by emptying its cache.

How it is told
--------------
A library's handle, a workspace or the context itself failed; or the driver charges the process for much
more than its allocator holds and a context needs.

Remedies
--------
Leave room for them: empty the cache before they are first used, make the handles early, bound the
workspace, bound the framework's share of the GPU.
"""

from __future__ import annotations

from vram.model.finding import Remedy
from vram.model.oom import Judgement, OomKind, Reading, Term, Working
from vram.oom.blame import blamed
from vram.oom.remedies import change, let_go, look, make_room
from vram.oom.sums import CONTEXT, Sums, said, shortfall

ID: OomKind = "context"
TITLE = "a context or a workspace"


def judge(reading: Reading, worked: Sums) -> Judgement | None:
    if "context" in reading.signs:
        return _making(reading)
    if "workspace" in reading.signs:
        return _workspace(reading)
    if blamed(reading, worked) != ID:
        return None
    return _outside(reading, worked)


def _making(reading: Reading) -> Judgement:
    return Judgement(
        kind=ID,
        certainty="likely",
        title="no room for a context",
        cause="The context itself could not be made, before any allocation: the GPU had less free"
        " than the half"
        " gigabyte that a context takes. Others hold the rest.",
        missing=("what was free", "who held the rest"),
        remedies=(look(reading), make_room(reading), _elsewhere()),
    )


def _workspace(reading: Reading) -> Judgement:
    amount = f" ({said(reading.asked)})" if reading.asked else ""
    found, it_is, them = f"A {reading.wording}", "It is", "it"
    if reading.dialect == "nccl":
        found, it_is, them = "NCCL's buffers", "They are", "them"
    return Judgement(
        kind=ID,
        certainty="likely",
        title="no room for a library's workspace",
        cause=f"{found}{amount} found no room. {it_is} taken from the driver directly; what the"
        f" framework keeps in its cache is of no use to {them}.",
        missing=("what was free", "how much the framework's cache held"),
        remedies=(*let_go(reading), *_bounds(reading), look(reading)),
    )


def _bounds(reading: Reading) -> tuple[Remedy, ...]:
    if reading.dialect == "nccl":
        text = "Let NCCL have smaller buffers (4 MiB each by default), or fewer channels."
        return (
            change("Leave it room: torch.cuda.set_per_process_memory_fraction(0.95) before training."),
            change(text, "export NCCL_BUFFSIZE=2097152 NCCL_MAX_NCHANNELS=8"),
        )
    if "cublas" in reading.signs:
        return (change("Bound cuBLAS's workspace.", "export CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8"),)
    return (change("Make handles early: run one small step of each kind before the large ones."),)


def _outside(reading: Reading, worked: Sums) -> Judgement:
    assert reading.process is not None or worked.listed is not None
    outside = worked.outside or 0
    terms = (
        Term("this process in all", outside + (worked.reserved or 0)),
        Term("its allocator", -(worked.reserved or 0)),
    )
    return Judgement(
        kind=ID,
        certainty="likely",
        title="this process, outside its allocator",
        cause=f"This process holds {said(outside)} that its allocator knows nothing of; a context"
        " accounts for about"
        f" {said(CONTEXT)}. The rest belongs to other libraries in it: workspaces, NCCL, a second"
        " framework's pool.",
        workings=(*shortfall(reading), Working(terms, "outside the allocator", outside)),
        remedies=(
            change(
                "Find the library: vram.scope around its first use shows what it takes outside"
                " every framework."
            ),
            *let_go(reading),
            change(
                "A second framework in the same process: bound its pool.",
                "export XLA_PYTHON_CLIENT_PREALLOCATE=false",
            ),
        ),
    )


def _elsewhere() -> Remedy:
    return change("Or start on another GPU: CUDA_VISIBLE_DEVICES=N.")

"""Findings about what is held, and how to tell that a process holds little more than a CUDA context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from vram.diagnosis import words
from vram.ledger.holds import find_holds, in_ledger_order, on_each_gpu
from vram.model.finding import Finding, Remedy
from vram.model.hold import Hold
from vram.model.ledger import Entry, GpuLedger, Ledger
from vram.model.process import Job
from vram.units import GIB, MIB


def finding_about(
    *holds: Hold,
    code: str,
    title: str,
    cause: str,
    nbytes: int | None = None,
    pids: Sequence[int] = (),
    evidence: Iterable[str] | None = None,
    remedies: Iterable[Remedy] = (),
    severity: Literal["problem", "warning", "info"] = "problem",
) -> Finding:
    """A finding about all bytes of *holds*; without other *evidence*, it has that of the holds."""
    sizes = [each for hold in holds if (each := hold.nbytes) is not None]
    return Finding(
        code=code,
        title=title,
        nbytes=nbytes if nbytes is not None or not sizes else sum(sizes),
        cause=cause,
        gpus=tuple(sorted({part.gpu for hold in holds for part in hold.parts})),
        pids=tuple(pids),
        evidence=words.evidence(_evidence_of(holds) if evidence is None else evidence),
        remedies=tuple(remedies),
        severity=severity,
        holds=tuple(hold.share for hold in holds),
    )


def _evidence_of(holds: Sequence[Hold]) -> tuple[str, ...]:
    """The evidence of several holds, in the order of the ledger."""
    if len(holds) == 1:
        return holds[0].evidence
    return tuple(line for part in in_ledger_order(holds) for line in part.entry.evidence)


def hidden_holds(
    ledger: Ledger, reason: Literal["namespace", "permission", "cgroup"]
) -> Iterator[tuple[GpuLedger, list[Hold]]]:
    """What on each GPU is held by processes that are hidden for this *reason*."""
    # Where an entry gives none, it is the namespace that vram runs in, unless that is the first one.
    unsaid = "permission" if ledger.host.initial_pid_namespace else "namespace"

    def is_meant(entry: Entry) -> bool:
        return bool(entry.nbytes) and entry.kind == "hidden" and (entry.hidden_by or unsaid) == reason

    return ((gpu, holds) for gpu, holds in on_each_gpu(ledger, is_meant) if holds)


# ---- what a context alone costs: memory that no trim returns ----

# A bare context is 518 MiB on an H200, with a first PyTorch tensor 612; desktop programs that
# merely draw stay far below.
MIN_CONTEXT = 100 * MIB
MAX_CONTEXT = 640 * MIB

ONLY_THE_CONTEXT = "little more than the CUDA context, freed only when the process exits or is parked"


def is_bare(nbytes: int | None) -> bool:
    """Whether a process that is charged so much can hold hardly more than its context."""
    return nbytes is not None and MIN_CONTEXT <= nbytes <= MAX_CONTEXT


def is_bare_context(entries: tuple[Entry, ...]) -> bool:
    """Whether these are one process's bytes on one NVIDIA GPU, and no more than about its context."""
    return len(entries) == 1 and entries[0].kind in ("process", "context") and is_bare(entries[0].nbytes)


def is_taken_over(ended_bytes: int | None, growth: int) -> bool:
    """Whether a process that grew by *growth* may have taken over memory of one that ended at that moment.

    It may where all that was freed is a context. Memory shared by CUDA IPC is charged to its exporter, and,
    when that has ended, to the importer: measured on an H200, driver 580.159 (518 to 4614 MiB).
    """
    return ended_bytes is not None and growth >= MIN_CONTEXT and is_bare(ended_bytes - growth)


# ---- contexts on a GPU that is not the process's own ----

# Older cards and drivers, and NCCL, make a context larger than a bare one of an H200: up to about 1 GB was
# reported (pytorch#135279). So much is called a context only beside the process's memory on another GPU.
_MAX_STRAY = GIB
_TIMES_LARGER = 2


class StrayContexts(NamedTuple):
    """Processes of one job, or of one parent where ``job`` is None, with their memory on other GPUs.

    ``at`` is the place in the ledger of the GPU where each of them has little more than a context.
    """

    at: int
    job: Job | None
    holds: tuple[Hold, ...]


def find_stray_contexts(ledger: Ledger) -> list[StrayContexts]:
    """Where two or more processes of a job have a context on one GPU, and their memory on others."""
    nvidia = {at for at, gpu in enumerate(ledger.gpus) if gpu.driver == "nvidia" and not gpu.instances}
    found: dict[tuple[int, object, object], list[Hold]] = {}
    for hold in find_holds(ledger):
        at = _stray_at(hold) if hold.what == "process" else None
        if at is None or at not in nvidia:
            continue
        holder = hold.holders[0]
        # Pid 1 is the parent of every process that lost its own.
        together = holder.job.key if holder.job else holder.parent if (holder.parent or 0) > 1 else None
        if together is not None:
            found.setdefault((at, holder.user, together), []).append(hold)
    return [
        StrayContexts(at, holds[0].holders[0].job, tuple(sorted(holds, key=_by_rank)))
        for (at, _, _), holds in found.items()
        if len(holds) > 1
    ]


def _stray_at(hold: Hold) -> int | None:
    """The one GPU where *hold* is little more than a context, and its process has far more on another."""
    by_gpu: dict[int, int] = {}
    for part in hold.parts:
        by_gpu[part.at] = by_gpu.get(part.at, 0) + (part.entry.nbytes or 0)
    most = max(by_gpu.values(), default=0)
    small = [at for at, nbytes in by_gpu.items() if nbytes * _TIMES_LARGER <= most and nbytes <= _MAX_STRAY]
    # One that has them on several GPUs reaches into its peers' memory, and has chosen to.
    return small[0] if len(small) == 1 and by_gpu[small[0]] >= MIN_CONTEXT else None


def _by_rank(hold: Hold) -> tuple[int, int]:
    holder = hold.holders[0]
    rank = holder.job.rank if holder.job else None
    return (-1 if rank is None else rank), holder.pid

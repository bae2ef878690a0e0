"""The driver's reserve for managed memory: in use, charged to no process, and held by none.

The driver takes device memory for managed memory 128 MiB at a time. What is freed goes back to the GPU; what
nothing has used yet stays, for the managed memory of any process, until the last process has ended that uses
CUDA there. Nothing reports its size: it is what is left where all else is accounted for. So it is a fact only
where nothing else can hold memory, and likely where a process may be hidden. A process that is seen and could
hold the bytes comes first, and what is more than the reserve can be is not called so, nor is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from vram.ledger.file_holders import likely_holders, sources, uncharged
from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey
from vram.model.ledger import MAX_PREALLOCATED, MIN_PREALLOCATED, Entry
from vram.units import counted

_TAKEN = "the driver takes memory for managed memory 128 MiB at a time; this is what nothing has used yet"


def preallocated_entry(survey: IndexedSurvey, gpu: GpuObservations, rest: int) -> Entry | None:
    """The entry for *rest*, bytes that nothing accounts for, where they can be the reserve; else None."""
    if not MIN_PREALLOCATED <= rest <= MAX_PREALLOCATED or rest % MIN_PREALLOCATED:
        return None
    if gpu.lists != "ok" or gpu.mig or (gpu.facts is not None and gpu.facts.mig_enabled):
        return None
    if not _uses_cuda(survey, gpu) or _suspects(survey, gpu):
        return None
    doubts = tuple(_doubts(survey, gpu))
    if not doubts and survey.elsewhere is None:
        doubts = ("only open files were read",)
    sure = "all processes' files were read, and nothing else can hold it"
    return Entry(
        kind="preallocated",
        nbytes=rest,
        evidence=(_TAKEN, *(doubts or (sure,))),
        confidence="likely" if doubts else "fact",
        medium="managed",
    )


def _uses_cuda(survey: IndexedSurvey, gpu: GpuObservations) -> bool:
    """Whether a process that lives uses CUDA on the GPU: with the last of them the reserve is gone."""
    return any(
        survey.alive(charge.process.pid) and set(charge.lists) != {"graphics"} for charge in gpu.charges
    ) or bool(gpu.unnamed)


def _suspects(survey: IndexedSurvey, gpu: GpuObservations) -> bool:
    """Whether a process that is charged nothing has a context's files, and of no living process."""
    minor = gpu.facts.minor if gpu.facts else None
    charged = [charge.process.pid for charge in gpu.charges if survey.alive(charge.process.pid)]
    for mapped in (True, False):
        candidates = likely_holders(uncharged(survey, minor, gpu.listed, mapped=mapped))
        found = sources(survey, candidates, minor, charged)
        if any(found[pid] is None for pid in candidates):
            return True
    return False


_ELSEWHERE = {
    "in-flight": "a descriptor is on its way from one process to another",
    "io-uring": "files are registered with an io_uring",
    "own-files": "a thread has files of its own",
    "other-driver": "a process uses another driver that can hold GPU memory",
    "console": "the driver may draw the console",
    "exiting": "a process is exiting",
    "untried": "not every exported handle could be measured",
    "cut-off": "not every process could be read",
}


def _doubts(survey: IndexedSurvey, gpu: GpuObservations) -> Iterator[str]:
    """Why something else may hold it."""
    if survey.unreadable.processes:
        yield f"the open files of {counted(survey.unreadable.processes, 'process')} are not readable"
    if not survey.host.initial_pid_namespace:
        yield "processes outside this PID namespace are not visible from here"
    elif survey.host.uid != 0 or survey.host.hides_processes:
        yield "only root sees all that can hold memory"
    if survey.unfinished or survey.cut:
        yield "not all open files were read"
    if gpu.ended or (gpu.memory is not None and gpu.memory.moved_bytes):
        yield "memory was being allocated or freed while it was read"
    if survey.has_unsized:
        yield "a dma-buf does not report its size"
    for code in survey.elsewhere.found if survey.elsewhere else ():
        yield _ELSEWHERE[code]

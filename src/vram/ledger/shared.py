"""A GPU whose memory is the machine's: its total is what the kernel counts, or a node of it.

On a GB10 or a Jetson the driver lists processes and refuses totals; on a Grace Hopper it gives totals that
have the kernel's own pages in them. What CPU programs and the kernel use is an entry, neither hidden nor
unexplained: nothing tells it from memory that the driver took and charges to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from vram.ledger.charges import unsized_entries
from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Entry, Note, known_bytes
from vram.units import size


def is_shared(memory: MemoryFacts | None) -> bool:
    """Whether the kernel counts this memory: then used bytes without a charge mean nothing by themselves."""
    return memory is not None and memory.counted_by == "kernel"


def on_own_node(memory: MemoryFacts, rest: int) -> list[Entry]:
    """The part of *rest* that the kernel counts on a node of which the driver gave the totals."""
    if memory.counted_by == "kernel" or memory.system is None:
        return []
    nbytes = min(rest, memory.system.nbytes)
    return [_entry(memory, nbytes, ())] if nbytes else []


def shared_remainder(survey: IndexedSurvey, gpu: GpuObservations, rest: int) -> list[Entry]:
    """Entries that sum to *rest*, where nothing but charges and exports tells the GPU's part from others'."""
    assert gpu.memory is not None
    unsized = [
        replace(entry, nbytes=None, evidence=(*entry.evidence, _UNSIZED), confidence="unknown")
        for entry in unsized_entries(survey, gpu)
    ]
    others = [other for other in survey.gpus.values() if other is not gpu and _same_memory(gpu, other)]
    held = [(other.index, sum(charge.nbytes or 0 for charge in other.charges)) for other in others]
    also = [f"{size(nbytes)} of it is held on GPU {index}" for index, nbytes in held if nbytes]
    if gpu.lists != "ok":
        also.append("the driver's process lists could not be read: what GPU programs hold is in it too")
    return unsized + ([_entry(gpu.memory, rest, also)] if rest else [])


_UNSIZED = "its bytes are among those of CPU programs"


def _same_memory(one: GpuObservations, other: GpuObservations) -> bool:
    if one.memory is None or other.memory is None or not is_shared(other.memory):
        return False
    nodes = [each.system.node if each.system else None for each in (one.memory, other.memory)]
    return nodes[0] == nodes[1]


def _entry(memory: MemoryFacts, nbytes: int, also: Iterable[str]) -> Entry:
    evidence = ["in use as the kernel counts, and charged to no GPU program", *_named(memory), *also]
    return Entry(kind="cpu", nbytes=nbytes, evidence=tuple(evidence), confidence="likely")


def _named(memory: MemoryFacts) -> list[str]:
    use = memory.system
    if use is None:
        return []
    named = [f"CPU programs {size(use.programs)}"] * (use.programs > 0)
    named += [f"the kernel {size(use.kernel)}"] * (use.kernel > 0)
    cached = [f"cached files {size(use.files)}"] * (use.files > 0)
    if is_shared(memory):  # cached files are in what is available
        return [f"of that the kernel names: {', '.join(named)}"] if named else []
    return [f"on node {use.node} the kernel names: {', '.join(named + cached)}"] if named + cached else []


def shared_notes(memory: MemoryFacts, entries: Iterable[Entry]) -> tuple[Note, ...]:
    """Which sum the total is, where it is not the GPU's own memory alone."""
    if memory.system is None:
        return ()
    node = memory.system.node
    total = "the system's memory" if node is None else f"node {node} of the system's memory"
    cpu = known_bytes(entry for entry in entries if entry.kind == "cpu")
    used = f"; CPU programs and kernel use {size(cpu)}" if cpu else ""
    return (Note("system-memory", f"the total is {total}{used}"),)

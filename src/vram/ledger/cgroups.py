"""Control groups: a limit that the driver answers as the total, and groups that unlisted bytes are of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey
from vram.model.cgroups import CgroupHolder, DmemFacts
from vram.model.gpu import MemoryFacts
from vram.model.ledger import MAX_CONTEXT_OVERHEAD, Entry, Note, known_bytes
from vram.units import MIB, size

# Less than this is what the driver keeps for a context, or figures read a moment apart.
_MIN_NBYTES = 2 * MIB


# ---- inside of a limit: the total is the limit ----


def is_limited(memory: MemoryFacts) -> bool:
    """Whether the total is the limit of our own control group, or near it, and not the GPU's."""
    is_less = memory.device_total is not None
    return is_less or (memory.limit is not None and memory.limit.hard == memory.total)


def withheld(memory: MemoryFacts) -> int:
    """Bytes of the limit that are neither used by the group nor available to it: others use them, or they are
    kept for others. Zero where the total is the GPU's."""
    if not is_limited(memory):
        return 0
    return max(0, memory.total - memory.free - memory.used - (memory.reserved or 0))


def withheld_entry(memory: MemoryFacts) -> list[Entry]:
    nbytes = withheld(memory)
    words = "within the limit, and not available: other control groups use the GPU, or it is kept for them"
    return [Entry(kind="withheld", nbytes=nbytes, evidence=(words,), confidence="likely")] if nbytes else []


def inside_limit(
    survey: IndexedSurvey, memory: MemoryFacts, entries: Iterable[Entry]
) -> tuple[list[Entry], list[Entry]]:
    """Entries whose holders are in our own group, and those of processes outside it, which the driver lists
    all the same: these are no part of the limit's sum."""
    if memory.limit is None or not is_limited(memory):
        return list(entries), []
    inside: list[Entry] = []
    outside: list[Entry] = []
    for entry in entries:
        groups = {_cgroup(survey, each.pid) for each in entry.holders} - {None}
        own = not groups or any(_is_within(group, memory.limit.cgroup) for group in groups if group)
        (inside if own else outside).append(entry)
    return inside, outside


def limit_notes(memory: MemoryFacts, outside: Sequence[Entry]) -> tuple[Note, ...]:
    """What the total is where it is a limit, and what of the GPU is not in it."""
    limit = memory.limit
    if not is_limited(memory):
        if limit is None or limit.hard is None:
            return ()
        used = "" if limit.used is None else f", and uses {size(limit.used)}"
        return (Note("cgroup-limit", f"this control group may have {size(limit.hard)}{used}"),)
    text = "the total is this control group's limit"
    if memory.device_total:
        text += f"; the GPU has {size(memory.device_total)}"
    if outside:
        text += f", and processes outside the group hold {size(known_bytes(outside))}"
    return (Note("cgroup-limit", text),)


# ---- unlisted bytes: the kernel says for which group they are ----


def by_cgroup(
    survey: IndexedSurvey, gpu: GpuObservations, known: Sequence[Entry], rest: Iterable[Entry]
) -> list[Entry]:
    """*rest* with bytes that nothing accounts for given to the groups that the kernel counts them for.

    Of what a group has, its processes' *known* entries are taken off, and what each context may cost beyond.
    """
    if not gpu.cgroups:
        return list(rest)
    left = _unaccounted(survey, gpu, known)
    found: list[Entry] = []
    for entry in rest:
        if entry.kind not in ("hidden", "unattributed") or entry.holder or entry.hidden_by == "end":
            found.append(entry)
            continue
        room = entry.nbytes or 0
        for path, (facts, nbytes) in left.items():
            part = min(room, nbytes)
            if part >= _MIN_NBYTES:
                left[path] = (facts, nbytes - part)
                room -= part
                found.append(_entry(facts, part))
        if room:
            found.append(replace(entry, nbytes=room))
    return found


def _unaccounted(
    survey: IndexedSurvey, gpu: GpuObservations, known: Sequence[Entry]
) -> dict[str, tuple[DmemFacts, int]]:
    """What each group has that no entry of its processes explains, the largest first."""
    groups = {facts.limit.cgroup: facts for facts, _ in gpu.cgroups}
    left = {facts.limit.cgroup: nbytes for facts, nbytes in gpu.cgroups}
    for entry in known:
        group = next((_cgroup(survey, each.pid) for each in entry.holders), None)
        path = _nearest(group, groups)
        if path is not None and entry.kind_facts.held:
            left[path] -= (entry.nbytes or 0) + MAX_CONTEXT_OVERHEAD
    ranked = sorted(left.items(), key=lambda each: -each[1])
    return {path: (groups[path], nbytes) for path, nbytes in ranked if nbytes > 0}


def _nearest(path: str | None, groups: Iterable[str]) -> str | None:
    above = [group for group in groups if path is not None and _is_within(path, group)]
    return max(above, key=len, default=None)


def _entry(facts: DmemFacts, nbytes: int) -> Entry:
    path = facts.limit.cgroup
    evidence = (
        f"the kernel counts {size(facts.limit.used or 0)} for control group {path}",
        f"{size(nbytes)} of it is charged to no process that is listed or visible",
    )
    return Entry(
        kind="hidden",
        nbytes=nbytes,
        evidence=evidence,
        hidden_by="cgroup",
        confidence="likely",
        cgroup=CgroupHolder(path, facts.workload),
    )


def _cgroup(survey: IndexedSurvey, pid: int) -> str | None:
    known = survey.processes.get(pid)
    return known[1].cgroup if known else None


def _is_within(path: str, above: str) -> bool:
    return above == "/" or path == above or path.startswith(f"{above.rstrip('/')}/")

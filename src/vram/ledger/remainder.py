"""The balance: claims cut to what is there, and what no charge covers: managed, overhead, hidden, unknown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec.structs import replace

from vram.ledger.charges import unsized_entries
from vram.ledger.indexed_survey import Charge, GpuObservations, IndexedSurvey, holder
from vram.ledger.preallocated import preallocated_entry
from vram.model.gpu import MemoryFacts
from vram.model.ledger import MAX_CONTEXT_OVERHEAD, Confidence, Entry, known_bytes
from vram.units import KIB, counted, size


def remainder_entries(survey: IndexedSurvey, gpu: GpuObservations, rest: int) -> list[Entry]:
    """Entries that sum to exactly *rest*, bytes in use that nothing so far accounts for."""
    unsized = unsized_entries(survey, gpu)
    overhead = overhead_entry(survey, gpu, rest, whole=not unsized)
    entries = [overhead] if overhead else []
    rest -= known_bytes(entries)
    if unsized:
        return entries + _without_figures(unsized, rest)
    with_files_open = open_on(survey, gpu) if gpu.lists not in ("ok", "unsupported") else []
    if with_files_open and rest:
        return [*entries, _unlisted(with_files_open, rest)]
    preallocated = preallocated_entry(survey, gpu, rest)
    return entries + ([preallocated or unexplained(survey, rest)] if rest else [])


def _without_figures(unsized: list[Entry], rest: int) -> list[Entry]:
    """Processes whose bytes the driver does not report share what is left."""
    if len(unsized) == 1:
        lone = (
            f"it is the only process without a figure, so the remaining {size(rest)} is counted as its memory"
        )
        return [_with(unsized[0], rest, lone, "unknown" if unsized[0].confidence == "unknown" else "likely")]
    part = f"it holds part of {size(rest)} shared by {len(unsized)} processes without a figure"
    entries = [_with(entry, None, part, "unknown") for entry in unsized]
    return entries + ([_together(unsized, rest)] if rest else [])


def _with(entry: Entry, nbytes: int | None, words: str, confidence: Confidence) -> Entry:
    return replace(entry, nbytes=nbytes, evidence=(*entry.evidence, words), confidence=confidence)


def _together(unsized: list[Entry], nbytes: int) -> Entry:
    """The bytes of several processes; who holds which of them is unknown."""
    people = {person.pid: person for entry in unsized for person in entry.holders}
    pids = ", ".join(map(str, sorted(people)))
    shared = f"held by pids {pids} together: the driver reports no figure for any of them"
    return Entry(
        kind="process",
        nbytes=nbytes,
        co_holders=tuple(people[pid] for pid in sorted(people)),
        sharing="together",
        evidence=(shared,),
        confidence="unknown",
    )


def _unlisted(with_files_open: list[int], rest: int) -> Entry:
    """Bytes of which only the lists that could not be read would show whose they are."""
    evidence = (
        "in use according to the device; the driver's process lists could not be read",
        f"{pids_of(with_files_open)} {'has' if len(with_files_open) == 1 else 'have'} the GPU open",
    )
    return Entry(kind="unattributed", nbytes=rest, evidence=evidence, confidence="unknown")


def unexplained(survey: IndexedSurvey, rest: int) -> Entry:
    """The entry for *rest* bytes in use that nothing accounts for."""
    statement = "in use according to the device, but charged to no process"
    reason, why = _reason(survey)
    return Entry(
        kind="hidden" if reason else "unattributed",
        nbytes=rest,
        evidence=(statement, why),
        hidden_by=reason,
        confidence="likely" if reason else "unknown",
    )


def _reason(survey: IndexedSurvey) -> tuple[Literal["namespace", "permission"] | None, str]:
    if not survey.host.initial_pid_namespace:
        return "namespace", "processes outside this PID namespace are not visible from here"
    if survey.host.hides_processes:
        return "permission", "/proc hides processes of other users (hidepid)"
    if survey.unreadable.processes:
        users = ", ".join(survey.unreadable.users) or "other users"
        whose = f"{counted(survey.unreadable.processes, 'process')} of {users}"
        return "permission", f"the open files of {whose} are not readable"
    return None, "no readable process has a device file, an exported allocation or a dma-buf that explains it"


# ---- managed memory: used, and in no process list ----
#
# A process shows how much of it it has (it maps nvidia-uvm for it), not where it lies: pages move to a
# device when that touches them. So it is the likely owner of bytes that are in use and charged to
# no process, up to what it has mapped.


# Managed memory managed_explains bytes by itself when it is this close to them, as a part of them.
_CLOSE = 16


def managed_explains(survey: IndexedSurvey, gpu: GpuObservations, room: int) -> bool:
    """Whether managed memory alone accounts for *room*, bytes that no process is charged for."""
    total = sum(_managed(survey, gpu).values())
    return total > 0 and abs(total - room) <= total // _CLOSE


def managed_entries(survey: IndexedSurvey, gpu: GpuObservations, room: int) -> list[Entry]:
    """Entries for managed memory, largest first, as far as *room* goes."""
    entries = []
    charges = {charge.process.pid: charge for charge in reversed(gpu.charges)}
    for pid, mapped in sorted(_managed(survey, gpu).items(), key=lambda each: (-each[1], each[0])):
        nbytes = min(mapped, room)
        if nbytes > 0:
            room -= nbytes
            entries.append(_managed_entry(survey, charges[pid], nbytes, mapped))
    return entries


def _managed(survey: IndexedSurvey, gpu: GpuObservations) -> dict[int, int]:
    """Managed bytes of every process that has a context on the GPU."""
    pids = {charge.process.pid for charge in gpu.charges if survey.alive(charge.process.pid)}
    found = {pid: survey.files[pid].managed_bytes or 0 for pid in pids if pid in survey.files}
    return {pid: nbytes for pid, nbytes in found.items() if nbytes}


def _managed_entry(survey: IndexedSurvey, charge: Charge, nbytes: int, mapped: int) -> Entry:
    return Entry(
        kind="process",
        nbytes=nbytes,
        holder=holder(survey, charge.process, charge.lists),
        evidence=(
            f"pid {charge.process.pid} has {size(mapped)} of managed memory mapped; no process list counts"
            " managed memory",
            "this memory is in use and charged to no process",
        ),
        confidence="likely",
        medium="managed",
    )


# ---- what CUDA itself costs beyond what the driver charges anybody for ----


# Used and in no list, measured on an H200 with driver 580.159: once on a GPU as soon as any
# process has initialised CUDA, and for each context beyond the 518 MiB that its process is charged.
_INITIALISED = 3328 * KIB
_CONTEXT = 5696 * KIB


def expected(survey: IndexedSurvey, gpu: GpuObservations) -> int:
    """Bytes that the GPU's contexts and others use without a charge."""
    if gpu.lists != "ok":
        return 0
    contexts = _contexts(gpu)
    initialised = bool(contexts) or any(survey.files[pid].mappings for pid in _uncharged(survey, gpu))
    return initialised * _INITIALISED + contexts * _CONTEXT


def _contexts(gpu: GpuObservations) -> int:
    return len(gpu.charges) + len(gpu.unnamed) + len(gpu.ended)


def overhead_entry(survey: IndexedSurvey, gpu: GpuObservations, rest: int, *, whole: bool) -> Entry | None:
    """The part of *rest* that is overhead; all of it, if *whole* and it is little enough."""
    usual = expected(survey, gpu)
    most = usual + _contexts(gpu) * (MAX_CONTEXT_OVERHEAD - _CONTEXT)
    if not usual and rest <= _INITIALISED and _is_in_use(survey):
        usual = rest
    nbytes = rest if whole and rest <= most else min(rest, usual)
    if not nbytes:
        return None
    return Entry(kind="overhead", nbytes=nbytes, evidence=_evidence(survey, gpu), confidence="likely")


def _evidence(survey: IndexedSurvey, gpu: GpuObservations) -> tuple[str, ...]:
    measured = "(measured on an H200, driver 580.159)"
    lines = []
    if gpu.charges or gpu.ended:
        contexts = counted(_contexts(gpu), "context")
        lines.append(
            f"{contexts}, each using about {size(_CONTEXT)} more than its process is charged {measured}"
        )
    elif uncharged := _initialised(survey, gpu):
        lines.append(f"CUDA is initialised, without a context, in {pids_of(uncharged)} {measured}")
    else:
        lines.append(f"no more than CUDA uses here for a process on another GPU {measured}")
    return tuple(lines)


def _is_in_use(survey: IndexedSurvey) -> bool:
    """Whether CUDA runs on any GPU. It opens all of them, and who comes or goes is not seen to have."""
    if survey.made_in_use is None:
        survey.made_in_use = any(
            gpu.lists == "ok" and (gpu.charges or gpu.ended) for gpu in survey.gpus.values()
        )
    return survey.made_in_use


def pids_of(pids: list[int]) -> str:
    """Name processes: "pid 7", "pids 7, 9"."""
    return f"{'pid' if len(pids) == 1 else 'pids'} {', '.join(map(str, pids))}"


def _initialised(survey: IndexedSurvey, gpu: GpuObservations) -> list[int]:
    """Processes that CUDA runs in (it maps the GPU's files) and that are charged nothing."""
    return [pid for pid in open_on(survey, gpu) if survey.files[pid].mappings]


def open_on(survey: IndexedSurvey, gpu: GpuObservations) -> list[int]:
    """Processes that have the GPU's own files open and are charged nothing."""
    return sorted(_uncharged(survey, gpu))


def _uncharged(survey: IndexedSurvey, gpu: GpuObservations) -> Iterator[int]:
    charged = gpu.listed
    return (pid for pid in survey.opened(gpu.facts.minor if gpu.facts else None) if pid not in charged)


# ---- the balance: claims are cut to what is there ----


_TRUST = {"unknown": 0, "likely": 1, "fact": 2}


def split(memory: MemoryFacts) -> tuple[int, int, int]:
    """Free, reserved and used bytes of a reading; they sum to its total whatever it says."""
    free = min(max(memory.free, 0), memory.total)
    reserved = min(max(memory.reserved or 0, 0), memory.total - free)
    return free, reserved, memory.total - free - reserved


def fit(claims: Sequence[Entry], room: int) -> tuple[Entry, ...]:
    """Cut *claims* until they sum to at most *room*.

    The driver can count the same bytes under two processes (memory shared by IPC, or
    figures read a moment apart). What is cut stays visible as ``claimed``. The least
    certain claim gives way first, then the largest: it is the one that can hold a share.
    """
    excess = known_bytes(claims) - room
    result = list(claims)
    sized = [(_TRUST[entry.confidence], -entry.nbytes, i) for i, entry in enumerate(result) if entry.nbytes]
    for _, negative, i in sorted(sized):
        if excess <= 0:
            break
        cut = min(excess, -negative)
        excess -= cut
        result[i] = _cut(result[i], -negative, cut)
    return tuple(result)


def overlapping(fitted: Sequence[Entry]) -> int:
    """How many bytes :func:`fit` has cut off *fitted*."""
    return sum(entry.claimed - (entry.nbytes or 0) for entry in fitted if entry.claimed is not None)


def _cut(entry: Entry, nbytes: int, cut: int) -> Entry:
    word = f"the driver reports {size(nbytes)}; {size(cut)} of it is already counted elsewhere"
    return replace(entry, nbytes=nbytes - cut, claimed=nbytes, evidence=(*entry.evidence, word))

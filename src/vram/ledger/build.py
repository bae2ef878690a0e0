"""The ledger: every GPU's bytes, each counted once, with who holds them and how we know.

In order: charges of the driver's lists, exported memory, managed memory, what CUDA itself costs, and
what is left: each takes its part of the bytes in use, so the entries sum to the total.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger import mig
from vram.ledger.cgroups import by_cgroup, inside_limit, limit_notes, withheld, withheld_entry
from vram.ledger.charges import charged_entries
from vram.ledger.exports import Place, PlacedExports, place_exports
from vram.ledger.file_holders import with_files_open
from vram.ledger.indexed_survey import GpuObservations, IndexedSurvey, holders, index_survey
from vram.ledger.mig import Part
from vram.ledger.process_lists import (
    ended_entries,
    ended_notes,
    list_notes,
    merge_repeated,
    set_ended_apart,
    unnamed_entries,
)
from vram.ledger.remainder import (
    expected,
    fit,
    managed_entries,
    managed_explains,
    overlapping,
    remainder_entries,
    split,
)
from vram.ledger.shared import is_shared, on_own_node, shared_notes, shared_remainder
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Entry, GpuLedger, Ledger, Note, OpenOnly, known_bytes
from vram.model.observation import Survey
from vram.units import size

Claims = tuple[list[Entry], list[OpenOnly]]


class GpuDraft(Struct):
    """The account of one GPU, or of one instance of it, while it is being written."""

    gpu: GpuObservations
    memory: MemoryFacts
    charged: tuple[Entry, ...]
    """What the driver's lists claim, and what the kernel counts on a node of its own."""
    rest: int
    """Used bytes that no charge covers."""


def build_ledger(taken: Survey) -> Ledger:
    """Return a ledger in which every GPU's entries sum to its total, to the byte."""
    survey = index_survey(taken)
    for gpu in survey.gpus.values():
        merge_repeated(gpu)
    set_ended_apart(survey)
    under_windows = survey.host.wsl_facts is not None and survey.host.wsl_facts.version == 2
    return Ledger(
        taken_at=taken.taken_at,
        host=taken.host,
        gpus=_under_windows(survey) if under_windows else _gpus(survey),
        driver=survey.driver,
        unreadable_processes=survey.unreadable.processes,
        unreadable_users=survey.unreadable.users,
        probes=taken.probes,
        parked=taken.parked,
    )


def _gpus(survey: IndexedSurvey) -> tuple[GpuLedger, ...]:
    divided = mig.known(survey)
    claims = {
        index: _claims(survey, gpu)
        for index, gpu in survey.gpus.items()
        if gpu.driver == "nvidia" and (gpu.memory or index in divided)
    }
    claims, outside = _split_by_limit(survey, claims)
    drafts = {
        place: draft for index in claims for place, draft in _drafts(survey, index, divided, claims[index][0])
    }
    # What CUDA costs beyond all charges is no room for exported memory.
    unbounded = {place for place, draft in drafts.items() if is_shared(draft.memory)}
    rooms = {place: _room(survey, draft) for place, draft in drafts.items()}
    # Nor is there any where managed memory accounts for all of it: then makers are charged for theirs.
    taken = [
        place
        for place, draft in drafts.items()
        if place not in unbounded and managed_explains(survey, draft.gpu, rooms[place])
    ]
    exports = place_exports(survey, rooms | dict.fromkeys(taken, 0), unbounded)
    builder = LedgerBuilder(survey, drafts, exports, claims, outside)
    return tuple(builder.gpu(gpu, divided.get(index)) for index, gpu in sorted(survey.gpus.items()))


def _claims(survey: IndexedSurvey, gpu: GpuObservations) -> Claims:
    entries, open_only = charged_entries(survey, gpu)
    return [*entries, *ended_entries(gpu), *unnamed_entries(gpu)], open_only


def _split_by_limit(
    survey: IndexedSurvey, claims: dict[int, Claims]
) -> tuple[dict[int, Claims], dict[int, tuple[Entry, ...]]]:
    """Claims that are in the sums, and what is outside of a limit that the driver answers as the total."""
    outside: dict[int, tuple[Entry, ...]] = {}
    for index, (entries, open_only) in claims.items():
        memory = survey.gpus[index].memory
        if memory is not None and memory.limit is not None:
            inside, others = inside_limit(survey, memory, entries)
            claims[index], outside[index] = (inside, open_only), tuple(others)
    return claims, outside


def _room(survey: IndexedSurvey, draft: GpuDraft) -> int:
    """Bytes that no process is charged for, and that are no overhead: unknown without the lists, so none."""
    if is_shared(draft.memory):
        return draft.rest
    return max(0, draft.rest - expected(survey, draft.gpu)) if draft.gpu.lists == "ok" else 0


def _without_draft(survey: IndexedSurvey, gpu: GpuObservations) -> GpuLedger:
    if gpu.driver == "nvidia":
        # The kernel reports open files also where the driver answers nothing.
        having = holders(survey, with_files_open(survey, gpu))
        return replace(_unread(gpu), open_only=tuple(OpenOnly(holder=each) for each in having))
    from vram.ledger.drm import drm_ledger

    return drm_ledger(survey, gpu)


def _under_windows(survey: IndexedSurvey) -> tuple[GpuLedger, ...]:
    """Under WSL2 the driver reports totals, and Windows the rest."""
    from vram.ledger.wsl import account, match_adapters

    adapters, drafts = match_adapters(survey), []
    for index, gpu in sorted(survey.gpus.items()):
        if gpu.memory is None or gpu.driver != "nvidia":
            drafts.append(_without_draft(survey, gpu))
            continue
        reported = account(survey, gpu, adapters[index], split(gpu.memory)[2])
        aged = (Note("windows-old", survey.windows_age),) if survey.windows_age else ()
        notes = (*_moved(gpu.memory), *aged, *reported.notes, *list_notes(gpu), *_apart(gpu.memory))
        entries = _with_unused(reported.entries, gpu.memory)
        drafts.append(replace(_read(gpu), entries=entries, notes=notes, windows=reported.side))
    return tuple(drafts)


def _drafts(
    survey: IndexedSurvey, index: int, divided: dict[int, tuple[Part, ...]], claims: Sequence[Entry]
) -> Iterator[tuple[Place, GpuDraft]]:
    """One draft for a whole GPU, or one for each instance of a divided one."""
    gpu = survey.gpus[index]
    if index not in divided:
        if gpu.memory:
            yield (index, None), _draft(gpu, gpu.memory, claims)
        return
    inside: dict[int | None, list[Entry]] = {}
    for claim in claims:
        inside.setdefault(claim.gpu_instance, []).append(claim)
    for part, observed in mig.instance_observations(gpu, divided[index]):
        if part.memory:
            draft = _draft(observed, part.memory, inside.get(part.number, []))
            yield (index, part.number), draft


def _draft(gpu: GpuObservations, memory: MemoryFacts, claims: Sequence[Entry]) -> GpuDraft:
    used = split(memory)[2] - withheld(memory)
    charged = fit(claims, used)
    charged = (*charged, *on_own_node(memory, used - known_bytes(charged)))
    return GpuDraft(gpu, memory, charged, used - known_bytes(charged))


class LedgerBuilder:
    """Turns drafts into ledgers: what is not charged is placed, and the rest is named."""

    def __init__(
        self,
        survey: IndexedSurvey,
        drafts: dict[Place, GpuDraft],
        exports: dict[Place, PlacedExports],
        claims: dict[int, Claims],
        outside: dict[int, tuple[Entry, ...]],
    ) -> None:
        self._outside = outside
        self._survey = survey
        self._drafts = drafts
        self._exports = exports
        self._claims = claims
        self._importers: dict[int, list[OpenOnly]] = {}
        for (index, _), (_, importers) in exports.items():
            self._importers.setdefault(index, []).extend(importers)

    def gpu(self, gpu: GpuObservations, parts: Sequence[Part] | None) -> GpuLedger:
        if parts is not None:
            return self._divided(gpu, parts)
        draft = self._drafts.get((gpu.index, None))
        if draft is None or gpu.memory is None:
            return _without_draft(self._survey, gpu)
        entries = _with_unused(self._held((gpu.index, None)), gpu.memory)
        outside = self._outside.get(gpu.index, ())
        return replace(
            _read(gpu),
            entries=entries,
            notes=(
                *shared_notes(gpu.memory, entries),
                *limit_notes(gpu.memory, outside),
                *_vgpu_note(gpu),
                *_notes(draft),
                *mig.note(gpu, mig.parts(gpu)),
            ),
            limits=tuple(facts for facts, _ in gpu.cgroups),
            outside=outside,
            open_only=self._open_only(gpu.index),
        )

    def _divided(self, gpu: GpuObservations, parts: Sequence[Part]) -> GpuLedger:
        numbers = {part.number for part in parts if part.memory}
        loose = [claim for claim in self._claims[gpu.index][0] if claim.gpu_instance not in numbers]
        inside = [
            replace(entry, gpu_instance=part.number)
            for part in parts
            if part.memory
            for entry in _with_unused(self._held((gpu.index, part.number)), part.memory)
        ]
        notes = {number: _notes(self._drafts[gpu.index, number]) for number in numbers}
        return replace(
            _read(gpu),
            entries=(*inside, *mig.outside(gpu, parts, loose)),
            open_only=self._open_only(gpu.index),
            instances=tuple(mig.instance(part, notes.get(part.number, ())) for part in parts),
        )

    def _held(self, place: Place) -> tuple[Entry, ...]:
        """Entries that sum to what is in use in one place."""
        survey, draft = self._survey, self._drafts[place]
        exported = fit(self._exports[place][0], draft.rest)
        rest = draft.rest - known_bytes(exported)
        if is_shared(draft.memory):
            return (*draft.charged, *exported, *shared_remainder(survey, draft.gpu, rest))
        managed = managed_entries(survey, draft.gpu, rest - expected(survey, draft.gpu))
        rest -= known_bytes(managed)
        known = (*draft.charged, *exported, *managed)
        return (*known, *by_cgroup(survey, draft.gpu, known, remainder_entries(survey, draft.gpu, rest)))

    def _open_only(self, index: int) -> tuple[OpenOnly, ...]:
        return (*self._claims[index][1], *self._importers.get(index, ()))


def _read(gpu: GpuObservations) -> GpuLedger:
    """A GPU whose memory was read, as a whole or by its instances; without its entries."""
    total = gpu.memory.total if gpu.memory else None
    about = {"status": gpu.status, "message": gpu.message, "code": gpu.code}
    return replace(_unread(gpu), total_bytes=total, memory=gpu.memory, **about)


def _with_unused(held: Sequence[Entry], memory: MemoryFacts) -> tuple[Entry, ...]:
    """*held* and what no process holds: together all there is."""
    free, reserved, _ = split(memory)
    frame = [Entry(kind="reserved", nbytes=reserved, evidence=(_OWN_FIGURE,))] if reserved else []
    figure = _KERNELS_FIGURE if is_shared(memory) else _OWN_FIGURE
    unused = Entry(kind="free", nbytes=free, evidence=(figure,))
    frame += withheld_entry(memory)
    return (*sorted(held, key=lambda entry: -(entry.nbytes or 0)), *frame, unused)


_OWN_FIGURE = "the driver's own figure"
_KERNELS_FIGURE = "what the kernel says is available: unused, and cached files that give way"


def _notes(draft: GpuDraft) -> tuple[Note, ...]:
    """Where the driver's figures do not agree with themselves, and what was done about it."""
    notes = [*_moved(draft.memory)]
    overlap = overlapping(draft.charged)
    if overlap:
        text = (
            f"the process lists add up to {size(overlap)} more than is in use: memory shared by processes"
            " is counted once here"
        )
        notes.append(Note("overlap", text))
    return (*notes, *list_notes(draft.gpu), *ended_notes(draft.gpu.ended), *_apart(draft.memory))


def _vgpu_note(gpu: GpuObservations) -> tuple[Note, ...]:
    if gpu.facts is None or gpu.facts.virtualization != "vgpu":
        return ()
    return (
        Note("vgpu", "a vGPU: the total is its profile's, other virtual machines' memory is not visible"),
    )


def _moved(memory: MemoryFacts) -> tuple[Note, ...]:
    if not memory.moved_bytes:
        return ()
    moved = f"used memory changed by {size(memory.moved_bytes)} while the process lists were read"
    return (Note("moved", f"{moved}; the last reading is shown"),)


def _apart(memory: MemoryFacts) -> tuple[Note, ...]:
    gap = memory.total - memory.free - memory.used - (memory.reserved or 0)
    if gap == withheld(memory):
        return ()
    text = f"the driver's totals differ by {size(abs(gap))}; used is taken as total minus free"
    return (Note("totals-apart", text),)


def _unread(gpu: GpuObservations) -> GpuLedger:
    """A GPU whose memory could not be read: no total, no entries, and the reason."""
    return GpuLedger(
        index=gpu.index,
        uuid=gpu.facts.uuid if gpu.facts else None,
        name=gpu.facts.name if gpu.facts else "unknown GPU",
        total_bytes=None,
        entries=(),
        status=gpu.status if gpu.status != "ok" else "unsupported",
        message=gpu.message or "the driver reports no memory figures for this GPU",
        code=gpu.code or "no-figures",
        facts=gpu.facts,
    )

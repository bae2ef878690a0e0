"""The ledger: every GPU's bytes, each counted once, with who keeps them and how we know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger import instances, lists
from vram.ledger.charges import charged_entries
from vram.ledger.ended import ended_entries, set_apart
from vram.ledger.ended import note as ended_note
from vram.ledger.families import openers
from vram.ledger.holders import holders
from vram.ledger.instances import Part
from vram.ledger.managed import explains, managed_entries
from vram.ledger.overhead import expected
from vram.ledger.reconcile import fit, overlapping, split
from vram.ledger.remainder import remainder_entries
from vram.ledger.shares import Place, Settled, settle
from vram.ledger.sightings import GpuSighting, Sightings, collect
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Entry, GpuLedger, Ledger, Note, OpenOnly, known_bytes
from vram.model.observation import Survey
from vram.model.windows import WindowsSide
from vram.units import size

Claims = tuple[list[Entry], list[OpenOnly]]


class _Page(Struct):
    """The account of one GPU, or of one instance of it, while it is being written."""

    gpu: GpuSighting
    memory: MemoryFacts
    charged: tuple[Entry, ...]
    rest: int
    """Used bytes that no charge covers."""


def build_ledger(survey: Survey) -> Ledger:
    """Return a ledger in which every GPU's entries sum to its total, to the byte."""
    seen = collect(survey)
    for gpu in seen.gpus.values():
        lists.tidy(gpu)
    set_apart(seen)
    under_windows = seen.host.wsl_facts is not None and seen.host.wsl_facts.version == 2
    return Ledger(
        taken_at=survey.taken_at,
        host=survey.host,
        gpus=_under_windows(seen) if under_windows else _gpus(seen),
        driver=seen.driver,
        unreadable_processes=seen.unreadable.processes,
        unreadable_users=seen.unreadable.users,
        probes=survey.probes,
    )


def _gpus(seen: Sightings) -> tuple[GpuLedger, ...]:
    divided = instances.known(seen)
    claims = {
        index: _claims(seen, gpu)
        for index, gpu in seen.gpus.items()
        if gpu.driver == "nvidia" and (gpu.memory or index in divided)
    }
    pages = {
        place: page for index in claims for place, page in _pages(seen, index, divided, claims[index][0])
    }
    # What CUDA costs beyond all charges is no room for exported memory.
    rooms = {place: _room(seen, page) for place, page in pages.items()}
    # Nor is there any where managed memory accounts for all of it: then makers are charged for theirs.
    taken = [place for place, page in pages.items() if explains(seen, page.gpu, rooms[place])]
    book = _Book(seen, pages, settle(seen, rooms | dict.fromkeys(taken, 0)), claims)
    return tuple(book.gpu(gpu, divided.get(index)) for index, gpu in sorted(seen.gpus.items()))


def _claims(seen: Sightings, gpu: GpuSighting) -> Claims:
    entries, open_only = charged_entries(seen, gpu)
    return [*entries, *ended_entries(gpu), *lists.unnamed_entries(gpu)], open_only


def _room(seen: Sightings, page: _Page) -> int:
    """Bytes that nobody is charged for, and that are no overhead: unknown without the lists, so none."""
    return max(0, page.rest - expected(seen, page.gpu)) if page.gpu.lists == "ok" else 0


def _elsewhere(seen: Sightings, gpu: GpuSighting) -> GpuLedger:
    if gpu.driver == "nvidia":
        # Open files are the kernel's to tell: they are known where the driver answers nothing.
        present = holders(seen, openers(seen, gpu))
        return replace(_unread(gpu), open_only=tuple(OpenOnly(holder=each) for each in present))
    from vram.ledger.drm_page import drm_ledger

    return drm_ledger(seen, gpu)


def _under_windows(seen: Sightings) -> tuple[GpuLedger, ...]:
    """In WSL2 the driver tells totals, and Windows the rest."""
    from vram.ledger.adapters import join
    from vram.ledger.wddm import account

    joined, pages = join(seen), []
    for index, gpu in sorted(seen.gpus.items()):
        if gpu.memory is None or gpu.driver != "nvidia":
            pages.append(_elsewhere(seen, gpu))
            continue
        told = account(seen, gpu, joined[index], split(gpu.memory)[2])
        aged = (Note("windows-old", seen.windows_age),) if seen.windows_age else ()
        notes = (*_moved(gpu.memory), *aged, *told.notes, *lists.notes(gpu), *_apart(gpu.memory))
        pages.append(_page(gpu, gpu.memory, told.entries, notes, windows=told.side))
    return tuple(pages)


def _pages(
    seen: Sightings, index: int, divided: dict[int, tuple[Part, ...]], claims: Sequence[Entry]
) -> Iterator[tuple[Place, _Page]]:
    """One page for a whole GPU, or one for each instance of a divided one."""
    gpu = seen.gpus[index]
    if index not in divided:
        if gpu.memory:
            yield (index, None), _open_page(gpu, gpu.memory, claims)
        return
    inside: dict[int | None, list[Entry]] = {}
    for claim in claims:
        inside.setdefault(claim.gpu_instance, []).append(claim)
    for part, sighting in instances.sightings(gpu, divided[index]):
        if part.memory:
            page = _open_page(sighting, part.memory, inside.get(part.number, []))
            yield (index, part.number), page


def _open_page(gpu: GpuSighting, memory: MemoryFacts, claims: Sequence[Entry]) -> _Page:
    used = split(memory)[2]
    charged = fit(claims, used)
    return _Page(gpu, memory, charged, used - known_bytes(charged))


class _Book:
    """All pages, and what closing them needs."""

    def __init__(
        self,
        seen: Sightings,
        pages: dict[Place, _Page],
        shared: dict[Place, Settled],
        claims: dict[int, Claims],
    ) -> None:
        self._seen = seen
        self._pages = pages
        self._shared = shared
        self._claims = claims
        self._importers: dict[int, list[OpenOnly]] = {}
        for (index, _), settled in shared.items():
            self._importers.setdefault(index, []).extend(settled.open_only)

    def gpu(self, gpu: GpuSighting, parts: Sequence[Part] | None) -> GpuLedger:
        if parts is not None:
            return self._divided(gpu, parts)
        page = self._pages.get((gpu.index, None))
        if page is None or gpu.memory is None:
            return _elsewhere(self._seen, gpu)
        notes = (*_notes(page), *instances.note(gpu, instances.parts(gpu)))
        held = self._held((gpu.index, None))
        return _page(gpu, gpu.memory, held, notes, self._open_only(gpu.index))

    def _divided(self, gpu: GpuSighting, parts: Sequence[Part]) -> GpuLedger:
        numbers = {part.number for part in parts if part.memory}
        loose = [claim for claim in self._claims[gpu.index][0] if claim.gpu_instance not in numbers]
        inside = [
            replace(entry, gpu_instance=part.number)
            for part in parts
            if part.memory
            for entry in _framed(self._held((gpu.index, part.number)), part.memory)
        ]
        notes = {number: _notes(self._pages[gpu.index, number]) for number in numbers}
        return replace(
            _unread(gpu),
            total_bytes=gpu.memory.total if gpu.memory else None,
            entries=(*inside, *instances.outside(gpu, parts, loose)),
            status=gpu.status,
            message=gpu.message,
            code=gpu.code,
            open_only=self._open_only(gpu.index),
            memory=gpu.memory,
            instances=tuple(instances.instance(part, notes.get(part.number, ())) for part in parts),
        )

    def _held(self, place: Place) -> tuple[Entry, ...]:
        """Close one page: entries that sum to what is in use there."""
        seen, page = self._seen, self._pages[place]
        exported = fit(self._shared[place].entries, page.rest)
        rest = page.rest - known_bytes(exported)
        managed = managed_entries(seen, page.gpu, rest - expected(seen, page.gpu))
        rest -= known_bytes(managed)
        return (*page.charged, *exported, *managed, *remainder_entries(seen, page.gpu, rest))

    def _open_only(self, index: int) -> tuple[OpenOnly, ...]:
        return (*self._claims[index][1], *self._importers.get(index, ()))


def _page(
    gpu: GpuSighting,
    memory: MemoryFacts,
    held: tuple[Entry, ...],
    notes: tuple[Note, ...],
    open_only: tuple[OpenOnly, ...] = (),
    windows: WindowsSide | None = None,
) -> GpuLedger:
    """One GPU's page; *held* sums to what is in use."""
    return replace(
        _unread(gpu),
        total_bytes=memory.total,
        entries=_framed(held, memory),
        status=gpu.status,
        message=gpu.message,
        code=gpu.code,
        notes=notes,
        open_only=open_only,
        memory=memory,
        windows=windows,
    )


def _framed(held: Sequence[Entry], memory: MemoryFacts) -> tuple[Entry, ...]:
    """*held* and what nobody holds: together all there is."""
    free, reserved, _ = split(memory)
    frame = [Entry(kind="reserved", nbytes=reserved, evidence=(_OWN_FIGURE,))] if reserved else []
    spare = Entry(kind="free", nbytes=free, evidence=(_OWN_FIGURE,))
    return (*sorted(held, key=lambda entry: -(entry.nbytes or 0)), *frame, spare)


_OWN_FIGURE = "the driver's own figure"


def _notes(page: _Page) -> tuple[Note, ...]:
    """Where the driver's figures do not agree with themselves, and what was done about it."""
    notes = [*_moved(page.memory)]
    overlap = overlapping(page.charged)
    if overlap:
        text = (
            f"the process lists claim {size(overlap)} more than is in use: bytes that processes share are"
            " counted once here"
        )
        notes.append(Note("overlap", text))
    return (*notes, *lists.notes(page.gpu), *ended_note(page.gpu.ended), *_apart(page.memory))


def _moved(memory: MemoryFacts) -> tuple[Note, ...]:
    if not memory.moved_bytes:
        return ()
    moved = f"used memory moved by {size(memory.moved_bytes)} while the process lists were read"
    return (Note("moved", f"{moved}; the last reading is shown"),)


def _apart(memory: MemoryFacts) -> tuple[Note, ...]:
    gap = memory.total - memory.free - memory.used - (memory.reserved or 0)
    if not gap:
        return ()
    text = f"the driver's totals are {size(abs(gap))} apart; used is taken as what is not free"
    return (Note("totals-apart", text),)


def _unread(gpu: GpuSighting) -> GpuLedger:
    """A GPU whose memory could not be read: no total, no entries, and the reason."""
    return GpuLedger(
        index=gpu.index,
        uuid=gpu.facts.uuid if gpu.facts else None,
        name=gpu.facts.name if gpu.facts else "unknown GPU",
        total_bytes=None,
        entries=(),
        status=gpu.status if gpu.status != "ok" else "unsupported",
        message=gpu.message or "the driver gives no memory figures for this GPU",
        code=gpu.code or "no-figures",
        facts=gpu.facts,
    )

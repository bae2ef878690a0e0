"""The ledger: every GPU's bytes, each counted once, with who keeps them and how we know."""

from __future__ import annotations

from msgspec import Struct

from vram.ledger.charges import charged_entries
from vram.ledger.managed import explains, managed_entries
from vram.ledger.overhead import expected
from vram.ledger.reconcile import fit, split
from vram.ledger.remainder import remainder_entries
from vram.ledger.shares import Settled, settle
from vram.ledger.sightings import GpuSighting, Sightings, collect
from vram.model.gpu import MemoryFacts
from vram.model.ledger import Bystander, Entry, GpuLedger, Ledger
from vram.model.observation import Survey
from vram.model.windows import WindowsSide
from vram.units import size


class _Page(Struct):
    """One GPU's account while it is being written."""

    gpu: GpuSighting
    memory: MemoryFacts
    charged: tuple[Entry, ...]
    bystanders: list[Bystander]
    rest: int
    """Used bytes that no charge covers."""


def build_ledger(survey: Survey) -> Ledger:
    """Return a ledger in which every GPU's entries sum to its total, to the byte."""
    seen = collect(survey)
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
    pages = {
        index: _open_page(seen, gpu, gpu.memory)
        for index, gpu in sorted(seen.gpus.items())
        if gpu.memory and gpu.driver == "nvidia"
    }
    # What CUDA costs beyond all charges is no room for exported memory.
    rooms = {index: max(0, page.rest - expected(seen, page.gpu)) for index, page in pages.items()}
    # Nor is there any where managed memory accounts for all of it: then makers are charged for theirs.
    taken = [index for index, page in pages.items() if explains(seen, page.gpu, rooms[index])]
    shared = settle(seen, rooms | dict.fromkeys(taken, 0))
    return tuple(
        _close_page(seen, pages[index], shared[index]) if index in pages else _elsewhere(seen, gpu)
        for index, gpu in sorted(seen.gpus.items())
    )


def _elsewhere(seen: Sightings, gpu: GpuSighting) -> GpuLedger:
    if gpu.driver == "nvidia":
        return _unread(gpu)
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
        notes = (*_moved(gpu.memory), *told.notes, *_apart(gpu.memory))
        pages.append(_page(gpu, gpu.memory, told.entries, notes, windows=told.side))
    return tuple(pages)


def _open_page(seen: Sightings, gpu: GpuSighting, memory: MemoryFacts) -> _Page:
    used = split(memory)[2]
    claims, bystanders = charged_entries(seen, gpu)
    charged = fit(claims, used)
    return _Page(gpu, memory, charged, bystanders, used - sum(entry.nbytes for entry in charged))


def _close_page(seen: Sightings, page: _Page, shared: Settled) -> GpuLedger:
    exported = fit(shared.entries, page.rest)
    rest = page.rest - sum(entry.nbytes for entry in exported)
    managed = managed_entries(seen, page.gpu, rest - expected(seen, page.gpu))
    rest -= sum(entry.nbytes for entry in managed)
    held = (*page.charged, *exported, *managed, *remainder_entries(seen, page.gpu, rest))
    return _page(page.gpu, page.memory, held, _notes(page), (*page.bystanders, *shared.bystanders))


def _page(
    gpu: GpuSighting,
    memory: MemoryFacts,
    held: tuple[Entry, ...],
    notes: tuple[str, ...],
    bystanders: tuple[Bystander, ...] = (),
    windows: WindowsSide | None = None,
) -> GpuLedger:
    """One GPU's page; *held* sums to what is in use."""
    free, reserved, _ = split(memory)
    frame = (
        [Entry(kind="reserved", nbytes=reserved, evidence=("the driver's own figure",))] if reserved else []
    )
    return GpuLedger(
        index=gpu.index,
        uuid=gpu.facts.uuid if gpu.facts else None,
        name=gpu.facts.name if gpu.facts else "unknown GPU",
        total_bytes=memory.total,
        entries=(
            *sorted(held, key=lambda entry: -entry.nbytes),
            *frame,
            Entry(kind="free", nbytes=free, evidence=("the driver's own figure",)),
        ),
        status=gpu.status,
        message=gpu.message,
        notes=notes,
        bystanders=bystanders,
        facts=gpu.facts,
        memory=memory,
        windows=windows,
    )


def _notes(page: _Page) -> tuple[str, ...]:
    """Where the driver's figures do not agree with themselves, and what was done about it."""
    notes = [*_moved(page.memory)]
    overlap = sum((entry.claimed or entry.nbytes) - entry.nbytes for entry in page.charged)
    if overlap:
        notes.append(
            f"the process lists claim {size(overlap)} more than is in use: bytes shared by processes are"
            " counted once here"
        )
    return (*notes, *_apart(page.memory))


def _moved(memory: MemoryFacts) -> tuple[str, ...]:
    if not memory.moved_bytes:
        return ()
    moved = f"used memory moved by {size(memory.moved_bytes)} while the process lists were read"
    return (f"{moved}; the last reading is shown",)


def _apart(memory: MemoryFacts) -> tuple[str, ...]:
    gap = memory.total - memory.free - memory.used - (memory.reserved or 0)
    if not gap:
        return ()
    return (f"the driver's totals are {size(abs(gap))} apart; used is taken as what is not free",)


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
        facts=gpu.facts,
    )

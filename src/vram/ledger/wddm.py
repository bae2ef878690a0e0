"""A GPU under Windows' driver, seen from WSL2: totals are known, figures per process are Windows'.

The driver names Linux processes without figures. Windows counts every process of its own, and
all of Linux as one: the virtual machine. What that machine holds is split only where it cannot
be anybody else's; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger.adapters import AdapterMatch
from vram.ledger.guests import Linux, linux_entries
from vram.ledger.reconcile import fit
from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.ledger import Entry, Note, known_bytes
from vram.model.windows import AdapterFacts, WindowsMemoryFacts, WindowsProcess, WindowsSide
from vram.units import MIB, counted, size

_GUEST = "vmmemwsl"
_ANY_GUEST = "vmmem"  # before Windows 11 22H2, and for every other virtual machine still
# Counters are read a moment apart, and what Windows itself holds is in none of them.
_WORTH_A_NOTE = 64 * MIB


class WddmAccount(Struct, frozen=True):
    """Entries that sum to the bytes in use, what to say about them, and what Windows said."""

    entries: tuple[Entry, ...]
    notes: tuple[Note, ...]
    side: WindowsSide


def account(seen: Sightings, gpu: GpuSighting, joined: AdapterMatch, used: int) -> WddmAccount:
    """Account for *used* bytes of *gpu*, to the byte."""
    if not seen.windows:
        return _unseen(seen, gpu, used, seen.windows_message or "Windows was not asked", seen.windows_code)
    if joined.adapter is None:
        return _unseen(seen, gpu, used, _ambiguity(seen, joined), "adapter-unknown")
    rows = [row for row in seen.windows if row.luid == joined.adapter.luid]
    guest, others = _told_apart(rows)
    claims = [_windows(row, joined) for row in others if row.device_bytes]
    room = None if guest is None else guest.device_bytes or 0
    machine = None if guest is None else _process(guest, guest=True)
    linux = linux_entries(seen, gpu, Linux(room, machine))
    fitted = _fitted((*claims, *linux), used)
    rest = used - known_bytes(fitted)
    side = _side(joined.adapter, joined.certain, rows, guest)
    return WddmAccount(
        entries=(*fitted, *([_in_no_counter(rest)] if rest else [])),
        notes=tuple(_notes(side, used)),
        side=side,
    )


def _unseen(seen: Sightings, gpu: GpuSighting, used: int, why: str, code: str | None) -> WddmAccount:
    linux = linux_entries(seen, gpu, Linux(None, None, most=used))
    rest = used - known_bytes(linux)
    hidden = Entry(
        kind="hidden",
        nbytes=rest,
        evidence=(
            "under Windows' driver only totals are told: Windows programs and all of WSL2 share these bytes",
            why,
        ),
        hidden_by="windows",
        confidence="unknown",
    )
    side = WindowsSide(read=False, message=why, code=code)
    return WddmAccount((*linux, *([hidden] if rest else [])), (), side)


def _ambiguity(seen: Sightings, joined: AdapterMatch) -> str:
    luids = {adapter.luid for adapter in joined.candidates}
    nbytes = sum(row.device_bytes or 0 for row in seen.windows if row.luid in luids)
    if not luids:
        return "none of Windows' adapters is this GPU"
    adapters = counted(len(luids), "adapter")
    return f"Windows counts {size(nbytes)} on {adapters}, and does not say which of them is this GPU"


def _told_apart(
    rows: Sequence[WindowsMemoryFacts],
) -> tuple[WindowsMemoryFacts | None, list[WindowsMemoryFacts]]:
    """The virtual machine of WSL2, where it is beyond doubt, and everybody else."""
    for name in (_GUEST, _ANY_GUEST):
        found = [row for row in rows if _plain(row.name) == name]
        if found:
            guest = found[0] if len(found) == 1 else None
            return guest, [row for row in rows if row is not guest]
    return None, list(rows)


def _plain(name: str | None) -> str:
    return (name or "").casefold().removesuffix(".exe")


def _process(row: WindowsMemoryFacts, *, guest: bool = False) -> WindowsProcess:
    return WindowsProcess(row.pid, row.name, guest, row.host_bytes)


def _windows(row: WindowsMemoryFacts, joined: AdapterMatch) -> Entry:
    evidence = [_statement(row)]
    if _plain(row.name) in (_GUEST, _ANY_GUEST):
        evidence.append("it is a virtual machine, one of several: which one is this WSL2 cannot be told")
    if not joined.certain:
        evidence.append("its adapter is taken for this GPU because there is no other")
    return Entry(
        kind="windows",
        nbytes=row.device_bytes or 0,
        windows=_process(row),
        evidence=tuple(evidence),
        confidence="fact" if joined.certain else "likely",
    )


def _statement(row: WindowsMemoryFacts) -> str:
    if row.local is None:
        return f"Windows counts {size(row.dedicated or 0)} committed by its pid {row.pid}"
    committed = "" if row.dedicated is None else f", {size(row.dedicated)} committed"
    return f"Windows counts {size(row.local)} resident for its pid {row.pid}{committed}"


def _fitted(claims: Sequence[Entry], used: int) -> tuple[Entry, ...]:
    """Cut the claims to what is in use, in Windows' name: these are its figures, not the driver's."""
    return tuple(
        replace(entry, evidence=(*before.evidence, _shortened(before, entry)))
        if entry.nbytes != before.nbytes
        else before
        for before, entry in zip(claims, fit(claims, used), strict=True)
    )


def _shortened(before: Entry, after: Entry) -> str:
    return f"{size((before.nbytes or 0) - (after.nbytes or 0))} of that is more than the driver counts in use"


def _in_no_counter(rest: int) -> Entry:
    return Entry(
        kind="unattributed",
        nbytes=rest,
        evidence=(
            "in use by the driver's figure, and in no Windows process's counter",
            "the display, Windows itself, and memory that is just being given back are in none",
        ),
        confidence="unknown",
    )


def _side(
    adapter: AdapterFacts,
    certain: bool,
    rows: Sequence[WindowsMemoryFacts],
    guest: WindowsMemoryFacts | None,
) -> WindowsSide:
    return WindowsSide(
        read=True,
        adapter=adapter.luid,
        certain=certain,
        counted_bytes=sum(row.device_bytes or 0 for row in rows),
        guest_bytes=guest.device_bytes if guest else None,
        guest_host_bytes=guest.host_bytes if guest else None,
        host_bytes=sum(row.host_bytes or 0 for row in rows),
    )


def _notes(side: WindowsSide, used: int) -> list[Note]:
    """Where Windows and the driver do not agree."""
    apart = (side.counted_bytes or 0) - used
    if abs(apart) < _WORTH_A_NOTE:
        return []
    word = "more" if apart > 0 else "less"
    text = (
        f"Windows' counters add up to {size(side.counted_bytes or 0)}, {size(abs(apart))} {word} than the"
        f" {size(used)} that the driver counts in use; the driver's figure is the sum here"
    )
    return [Note("windows-apart", text)]

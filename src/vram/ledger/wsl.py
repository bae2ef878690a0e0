"""A GPU under Windows' driver, seen from WSL2: totals are known, figures per process are Windows'.

The driver names Linux processes without figures. Windows counts every process of its own, and
all of Linux as one: the virtual machine. What that machine holds is split only where it cannot
be anybody else's; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.ledger.file_holders import joined
from vram.ledger.indexed_survey import Charge, GpuObservations, IndexedSurvey, holder, holders
from vram.ledger.remainder import fit
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


def account(survey: IndexedSurvey, gpu: GpuObservations, joined: AdapterMatch, used: int) -> WddmAccount:
    """Account for *used* bytes of *gpu*, to the byte."""
    if not survey.windows:
        return _unseen(
            survey, gpu, used, survey.windows_message or "Windows was not queried", survey.windows_code
        )
    if joined.adapter is None:
        return _unseen(survey, gpu, used, _ambiguity(survey, joined), "adapter-unknown")
    rows = [row for row in survey.windows if row.luid == joined.adapter.luid]
    guest, others = _guest_and_others(rows)
    claims = [_windows(row, joined) for row in others if row.device_bytes]
    room = None if guest is None else guest.device_bytes or 0
    machine = None if guest is None else _process(guest, guest=True)
    linux = linux_entries(survey, gpu, Linux(room, machine))
    fitted = _fit_to_used((*claims, *linux), used)
    rest = used - known_bytes(fitted)
    side = _side(joined.adapter, joined.certain, rows, guest)
    return WddmAccount(
        entries=(*fitted, *([_in_no_counter(rest)] if rest else [])),
        notes=tuple(_notes(side, used)),
        side=side,
    )


def _unseen(
    survey: IndexedSurvey, gpu: GpuObservations, used: int, why: str, code: str | None
) -> WddmAccount:
    linux = linux_entries(survey, gpu, Linux(None, None, most=used))
    rest = used - known_bytes(linux)
    hidden = Entry(
        kind="hidden",
        nbytes=rest,
        evidence=(
            "Windows' driver reports totals only: Windows programs and all of WSL2 share this memory",
            why,
        ),
        hidden_by="windows",
        confidence="unknown",
    )
    side = WindowsSide(read=False, message=why, code=code)
    return WddmAccount((*linux, *([hidden] if rest else [])), (), side)


def _ambiguity(survey: IndexedSurvey, joined: AdapterMatch) -> str:
    luids = {adapter.luid for adapter in joined.candidates}
    nbytes = sum(row.device_bytes or 0 for row in survey.windows if row.luid in luids)
    if not luids:
        return "no adapter in Windows matches this GPU"
    adapters = counted(len(luids), "adapter")
    return f"Windows counts {size(nbytes)} on {adapters}, and does not say which of them is this GPU"


def _guest_and_others(
    rows: Sequence[WindowsMemoryFacts],
) -> tuple[WindowsMemoryFacts | None, list[WindowsMemoryFacts]]:
    """The virtual machine of WSL2, where it is beyond doubt, and all others."""
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
        evidence.append("it is one of several virtual machines; which one is this WSL2 is unknown")
    if not joined.certain:
        evidence.append("its adapter is taken to be this GPU because there is no other")
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


def _fit_to_used(claims: Sequence[Entry], used: int) -> tuple[Entry, ...]:
    """Cut the claims to what is in use, in Windows' name: these are its figures, not the driver's."""
    return tuple(
        replace(entry, evidence=(*before.evidence, _shortened(before, entry)))
        if entry.nbytes != before.nbytes
        else before
        for before, entry in zip(claims, fit(claims, used), strict=True)
    )


def _shortened(before: Entry, after: Entry) -> str:
    return (
        f"{size((before.nbytes or 0) - (after.nbytes or 0))} of that is more than the driver counts as used"
    )


def _in_no_counter(rest: int) -> Entry:
    return Entry(
        kind="unattributed",
        nbytes=rest,
        evidence=(
            "in use according to the driver, but no Windows process counts it",
            "the display, Windows itself and memory that is being freed are not counted per process",
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


# ---- Linux processes: who has Windows' device open, and what of the guest's memory is theirs ----


_ELSEWHERE = "processes of other distributions run in the same virtual machine and are not visible from here"


class Linux(Struct, frozen=True):
    """What Linux has together: *room* bytes as Windows counts them, None where that is not known.

    *most* bounds it then: it cannot be more than is in use.
    """

    room: int | None
    machine: WindowsProcess | None
    most: int = 0


def linux_entries(survey: IndexedSurvey, gpu: GpuObservations, linux: Linux) -> list[Entry]:
    """Entries for Linux processes that sum to the room, or to what the driver reports of them."""
    # Another distribution numbers its processes anew: only who has the device open here is meant.
    reported = [
        each for each in gpu.charges if each.nbytes is not None and _has_device(survey, each.process.pid)
    ]
    entries = [_listed(survey, charge) for charge in reported]
    figured = {charge.process.pid for charge in reported}
    families = [family for family in _families(survey, gpu) if figured.isdisjoint(family)]
    if linux.room is None:
        return entries + [_unknown(survey, family, _bound(linux, len(families))) for family in families]
    rest = max(0, linux.room - known_bytes(entries))
    if len(families) == 1 and rest and not _strangers(survey, gpu):
        return [*entries, _lone(survey, families[0], linux, rest)]
    share = f"it holds part of the {size(rest)} that Windows counts for all of Linux together"
    entries += [_unknown(survey, family, share) for family in families]
    return entries + ([_together(survey, linux, families, rest)] if rest else [])


def _strangers(survey: IndexedSurvey, gpu: GpuObservations) -> list[int]:
    """Pids that the driver lists and no process has here: another distribution's processes."""
    listed = (charge.process.pid for charge in gpu.charges)
    return [pid for pid in listed if not _has_device(survey, pid)]


def _bound(linux: Linux, families: int) -> str:
    if linux.machine is None and not linux.most:
        return "how much it holds is unknown"
    alone = "alone " if families == 1 else ""
    return f"how much it holds {alone}is unknown: at most the {size(linux.most)} in use"


def _listed(survey: IndexedSurvey, charge: Charge) -> Entry:
    return Entry(
        kind="process",
        nbytes=charge.nbytes or 0,
        holder=holder(survey, charge.process, charge.lists),
        evidence=(f"the driver's list names pid {charge.process.pid} with {size(charge.nbytes or 0)}",),
    )


def _lone(survey: IndexedSurvey, family: tuple[int, ...], linux: Linux, nbytes: int) -> Entry:
    words = (
        f"Windows counts {size(linux.room or 0)} for the WSL2 virtual machine, and no other readable process"
        " has its GPUs open"
    )
    entry = _unknown(survey, family, words, *_unreadable(survey), _ELSEWHERE)
    return replace(entry, nbytes=nbytes, windows=linux.machine, confidence="likely")


def _unknown(survey: IndexedSurvey, family: tuple[int, ...], *words: str) -> Entry:
    people = holders(survey, family)
    return Entry(
        kind="process",
        nbytes=None,
        holder=people[0],
        co_holders=people[1:],
        sharing="all" if len(people) > 1 else None,
        evidence=(_descriptors(survey, family[0]), *words),
        confidence="unknown",
    )


def _together(survey: IndexedSurvey, linux: Linux, families: list[tuple[int, ...]], nbytes: int) -> Entry:
    whose = ", ".join(str(pid) for family in families for pid in family)
    lines = [
        f"Windows counts {size(linux.room or 0)} for the WSL2 virtual machine, not per process",
        f"pid {whose} have its GPUs open" if len(families) > 1 else "",
        f"pid {whose} has its GPUs open" if len(families) == 1 else "",
        "" if families else "no readable process has its GPUs open",
        *_unreadable(survey),
        _ELSEWHERE,
    ]
    return Entry(
        kind="guest",
        nbytes=nbytes,
        windows=linux.machine,
        evidence=tuple(filter(None, lines)),
        confidence="fact",
    )


def _unreadable(survey: IndexedSurvey) -> list[str]:
    unread = survey.unreadable.processes
    return [f"the open files of {counted(unread, 'process')} are not readable"] if unread else []


def _descriptors(survey: IndexedSurvey, pid: int) -> str:
    number = sum(file.kind == "dxg" for file in survey.files[pid].files)
    return f"pid {pid} has {counted(number, 'descriptor')} on /dev/dxg"


def _families(survey: IndexedSurvey, gpu: GpuObservations) -> list[tuple[int, ...]]:
    """Processes with the device open, those with the very same open files together.

    The device does not say which GPU it is used for. Where there are several, the driver's lists
    do, unless they name no process at all.
    """
    opened = {pid: _descriptions(survey, pid) for pid in sorted(survey.files) if _has_device(survey, pid)}
    listed = {other.index: {charge.process.pid for charge in other.charges} for other in survey.gpus.values()}
    if len(listed) > 1 and any(pids & opened.keys() for pids in listed.values()):
        opened = {pid: files for pid, files in opened.items() if pid in listed[gpu.index]}
    pids = list(opened)
    return [tuple(sorted(pids[at] for at in group)) for group in joined(list(opened.values()))]


def _has_device(survey: IndexedSurvey, pid: int) -> bool:
    files = survey.files[pid].files if pid in survey.files else ()
    return survey.alive(pid) and any(file.kind == "dxg" for file in files)


def _descriptions(survey: IndexedSurvey, pid: int) -> frozenset[int]:
    files = survey.files[pid].files
    return frozenset(f.description for f in files if f.kind == "dxg" and f.description is not None)


# ---- which of Windows' adapters is which GPU: by place on PCI, else by name, else not at all ----


_NVIDIA = 0x10DE
# Windows' figure leaves out what the driver reserves: a few hundred MiB of some GiB.
_CLOSE = 8


class AdapterMatch(Struct, frozen=True):
    """A GPU's adapter. Without one, ``candidates`` are those that it may be."""

    adapter: AdapterFacts | None = None
    certain: bool = False
    candidates: tuple[AdapterFacts, ...] = ()


def match_adapters(survey: IndexedSurvey) -> dict[int, AdapterMatch]:
    """For every GPU its adapter; none is given to two."""
    gpus = {index: gpu for index, gpu in survey.gpus.items() if gpu.driver == "nvidia"}
    adapters = _present([each for each in survey.adapters if each.vendor in (None, _NVIDIA)])
    joined: dict[int, AdapterMatch] = {}
    for fits in (_same_place, _same_card):
        for index, gpu in list(gpus.items()):
            matches = [adapter for adapter in adapters if fits(gpu, adapter)]
            if len(matches) == 1 and _is_only(gpu, matches[0], gpus, fits):
                joined[index] = AdapterMatch(matches[0], certain=True)
                adapters.remove(matches[0])
                del gpus[index]
    for index in gpus:
        lone = len(gpus) == 1 and len(adapters) == 1
        joined[index] = AdapterMatch(adapters[0]) if lone else AdapterMatch(candidates=tuple(adapters))
    return joined


def _present(adapters: list[AdapterFacts]) -> list[AdapterFacts]:
    """Without those that are only remembered: the registry keeps a card's entries of earlier drivers.

    Windows has a counter for every adapter that is there, used or not, and reports places of no others.
    """
    return [each for each in adapters if (each.local, each.bus) != (None, None)] or adapters


def _is_only(
    gpu: GpuObservations,
    adapter: AdapterFacts,
    gpus: dict[int, GpuObservations],
    fits: Callable[[GpuObservations, AdapterFacts], bool],
) -> bool:
    return not any(fits(other, adapter) for other in gpus.values() if other is not gpu)


def _same_place(gpu: GpuObservations, adapter: AdapterFacts) -> bool:
    return adapter.bus is not None and adapter.bus == _place(gpu.facts.bus_id if gpu.facts else None)


def _place(bus_id: str | None) -> tuple[int, int, int] | None:
    """Bus, device and function of "00000000:01:00.0"; Windows counts no domains."""
    try:
        _, bus, rest = (bus_id or "").split(":")
        device, function = rest.split(".")
        return int(bus, 16), int(device, 16), int(function, 16)
    except ValueError:
        return None


def _same_card(gpu: GpuObservations, adapter: AdapterFacts) -> bool:
    if gpu.facts is None or adapter.name is None or _plain_card(gpu.facts.name) != _plain_card(adapter.name):
        return False
    # Where both places are known and differ, equal names are two cards.
    known = adapter.bus is not None and _place(gpu.facts.bus_id) is not None
    return not known and _same_total(gpu, adapter)


def _same_total(gpu: GpuObservations, adapter: AdapterFacts) -> bool:
    if gpu.memory is None or not adapter.total:
        return True
    return abs(gpu.memory.total - adapter.total) <= gpu.memory.total // _CLOSE


def _plain_card(name: str) -> str:
    return " ".join(name.casefold().removesuffix("(virtual)").removeprefix("nvidia").split())

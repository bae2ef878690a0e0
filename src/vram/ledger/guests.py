"""Linux processes inside WSL2: whoever has Windows' device open, and what of the guest is theirs."""

from __future__ import annotations

from msgspec import Struct

from vram.ledger.families import joined
from vram.ledger.holders import holder, holders
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry, known_bytes
from vram.model.windows import WindowsProcess
from vram.units import counted, size

_ELSEWHERE = "processes of other distributions run in the same machine and cannot be seen from here"


class Linux(Struct, frozen=True):
    """What Linux has together: *room* bytes as Windows counts them, None where that is not known.

    *most* bounds it then: it cannot be more than is in use.
    """

    room: int | None
    machine: WindowsProcess | None
    most: int = 0


def linux_entries(seen: Sightings, gpu: GpuSighting, linux: Linux) -> list[Entry]:
    """Entries for Linux processes that sum to the room, or to what the driver tells of them."""
    # Another distribution numbers its processes anew: only who has the device open here is meant.
    told = [each for each in gpu.charges if each.nbytes is not None and _has_device(seen, each.process.pid)]
    entries = [_told(seen, charge) for charge in told]
    figured = {charge.process.pid for charge in told}
    families = [family for family in _families(seen, gpu) if figured.isdisjoint(family)]
    if linux.room is None:
        return entries + [_unknown(seen, family, _bound(linux, len(families))) for family in families]
    rest = max(0, linux.room - known_bytes(entries))
    if len(families) == 1 and rest and not _strangers(seen, gpu):
        return [*entries, _lone(seen, families[0], linux, rest)]
    share = f"it holds a part of the {size(rest)} that Windows counts for all of Linux together"
    entries += [_unknown(seen, family, share) for family in families]
    return entries + ([_together(seen, linux, families, rest)] if rest else [])


def _strangers(seen: Sightings, gpu: GpuSighting) -> list[int]:
    """Pids that the driver lists and that nobody has here: another distribution's processes."""
    listed = (charge.process.pid for charge in gpu.charges)
    return [pid for pid in listed if not _has_device(seen, pid)]


def _bound(linux: Linux, families: int) -> str:
    if linux.machine is None and not linux.most:
        return "how much it holds is not told"
    alone = "alone " if families == 1 else ""
    return f"how much it holds {alone}is not told: at most the {size(linux.most)} in use"


def _told(seen: Sightings, charge: Charge) -> Entry:
    return Entry(
        kind="process",
        nbytes=charge.nbytes or 0,
        holder=holder(seen, charge.process, charge.lists),
        evidence=(f"the driver's list names pid {charge.process.pid} with {size(charge.nbytes or 0)}",),
    )


def _lone(seen: Sightings, family: tuple[int, ...], linux: Linux, nbytes: int) -> Entry:
    people = holders(seen, family)
    return Entry(
        kind="process",
        nbytes=nbytes,
        holder=people[0],
        co_holders=people[1:],
        sharing="all" if len(people) > 1 else None,
        windows=linux.machine,
        evidence=(
            _open(seen, family[0]),
            f"Windows counts {size(linux.room or 0)} for the virtual machine of WSL2, and nobody else that"
            " can be read here has its GPUs open",
            *_unread(seen),
            _ELSEWHERE,
        ),
        confidence="likely",
    )


def _unknown(seen: Sightings, family: tuple[int, ...], words: str) -> Entry:
    people = holders(seen, family)
    return Entry(
        kind="process",
        nbytes=None,
        holder=people[0],
        co_holders=people[1:],
        sharing="all" if len(people) > 1 else None,
        evidence=(_open(seen, family[0]), words),
        confidence="unknown",
    )


def _together(seen: Sightings, linux: Linux, families: list[tuple[int, ...]], nbytes: int) -> Entry:
    whose = ", ".join(str(pid) for family in families for pid in family)
    lines = [
        f"Windows counts {size(linux.room or 0)} for the virtual machine of WSL2, and not for each process",
        f"pid {whose} have its GPUs open" if len(families) > 1 else "",
        f"pid {whose} has its GPUs open" if len(families) == 1 else "",
        "" if families else "no process that can be read here has its GPUs open",
        *_unread(seen),
        _ELSEWHERE,
    ]
    return Entry(
        kind="guest",
        nbytes=nbytes,
        windows=linux.machine,
        evidence=tuple(filter(None, lines)),
        confidence="fact",
    )


def _unread(seen: Sightings) -> list[str]:
    unread = seen.unreadable.processes
    return [f"the open files of {counted(unread, 'process')} may not be read"] if unread else []


def _open(seen: Sightings, pid: int) -> str:
    number = sum(file.kind == "dxg" for file in seen.files[pid].files)
    return f"pid {pid} has {counted(number, 'descriptor')} on /dev/dxg"


def _families(seen: Sightings, gpu: GpuSighting) -> list[tuple[int, ...]]:
    """Processes with the device open, those with the very same open files together.

    The device does not say which GPU it is used for. Where there are several, the driver's lists
    do, unless they name nobody at all.
    """
    opened = {pid: _descriptions(seen, pid) for pid in sorted(seen.files) if _has_device(seen, pid)}
    listed = {other.index: {charge.process.pid for charge in other.charges} for other in seen.gpus.values()}
    if len(listed) > 1 and any(pids & opened.keys() for pids in listed.values()):
        opened = {pid: files for pid, files in opened.items() if pid in listed[gpu.index]}
    pids = list(opened)
    return [tuple(sorted(pids[at] for at in group)) for group in joined(list(opened.values()))]


def _has_device(seen: Sightings, pid: int) -> bool:
    files = seen.files[pid].files if pid in seen.files else ()
    return seen.alive(pid) and any(file.kind == "dxg" for file in files)


def _descriptions(seen: Sightings, pid: int) -> frozenset[int]:
    files = seen.files[pid].files
    return frozenset(f.description for f in files if f.kind == "dxg" and f.description is not None)

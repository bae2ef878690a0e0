"""What is left when every claim is counted: overhead, hidden from us, or unexplained."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from vram.ledger.charges import untold_entries
from vram.ledger.overhead import open_on, overhead_entry, pids_of
from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.ledger import Confidence, Entry
from vram.units import counted, size


def remainder_entries(seen: Sightings, gpu: GpuSighting, rest: int) -> list[Entry]:
    """Entries that sum to exactly *rest*, bytes in use that nothing so far accounts for."""
    untold = untold_entries(seen, gpu)
    overhead = overhead_entry(seen, gpu, rest, whole=not untold)
    entries = [overhead] if overhead else []
    rest -= sum(entry.nbytes for entry in entries)
    if untold:
        return entries + _without_figures(untold, rest)
    openers = open_on(seen, gpu) if gpu.lists not in ("ok", "unsupported") else []
    if openers and rest:
        return [*entries, _unlisted(openers, rest)]
    return entries + ([unexplained(seen, rest)] if rest else [])


def _without_figures(untold: list[Entry], rest: int) -> list[Entry]:
    """Processes whose bytes the driver does not tell share what is left."""
    if len(untold) == 1:
        lone = f"it is the only one without a figure: the {size(rest)} left over are its"
        return [_with(untold[0], rest, lone, "unknown" if untold[0].confidence == "unknown" else "likely")]
    part = f"it holds a part of {size(rest)} that {len(untold)} such processes share"
    entries = [_with(entry, 0, part, "unknown") for entry in untold]
    return entries + ([_together(untold, rest)] if rest else [])


def _with(entry: Entry, nbytes: int, words: str, confidence: Confidence) -> Entry:
    return replace(entry, nbytes=nbytes, evidence=(*entry.evidence, words), confidence=confidence)


def _together(untold: list[Entry], nbytes: int) -> Entry:
    """The bytes of several processes; who keeps which of them is not told."""
    named = [person for entry in untold for person in (entry.holder, *entry.sharers) if person]
    people = {person.pid: person for person in named}
    pids = ", ".join(map(str, sorted(people)))
    shared = f"held by pids {pids} together: the driver gives no figure for any of them"
    sharers = tuple(people[pid] for pid in sorted(people))
    return Entry(kind="process", nbytes=nbytes, sharers=sharers, evidence=(shared,), confidence="unknown")


def _unlisted(openers: list[int], rest: int) -> Entry:
    """Bytes of which only the lists that could not be read would tell whose they are."""
    evidence = (
        "in use by the device's own figures; the driver's process lists could not be read",
        f"{pids_of(openers)} {'has' if len(openers) == 1 else 'have'} the GPU open",
    )
    return Entry(kind="unattributed", nbytes=rest, evidence=evidence, confidence="unknown")


def unexplained(seen: Sightings, rest: int) -> Entry:
    """The entry for *rest* bytes in use that nothing accounts for."""
    statement = "in use by the device's own figures, and charged to no process"
    reason, why = _reason(seen)
    return Entry(
        kind="hidden" if reason else "unattributed",
        nbytes=rest,
        evidence=(statement, why),
        hidden_by=reason,
        confidence="likely" if reason else "unknown",
    )


def _reason(seen: Sightings) -> tuple[Literal["namespace", "permission"] | None, str]:
    if not seen.host.initial_pid_namespace:
        return "namespace", "processes outside this PID namespace cannot be seen from here"
    if seen.host.hides_processes:
        return "permission", "/proc shows us no processes of other users (hidepid)"
    if seen.unreadable.processes:
        users = ", ".join(seen.unreadable.users) or "other users"
        whose = f"{counted(seen.unreadable.processes, 'process')} of {users}"
        return "permission", f"the open files of {whose} may not be read"
    return None, "no readable process has a device file, an exported allocation or a dma-buf that explains it"

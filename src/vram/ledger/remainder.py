"""What is left when every claim is counted: overhead, hidden from us, or unexplained."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from vram.ledger.charges import unsized_entries
from vram.ledger.overhead import open_on, overhead_entry, pids_of
from vram.ledger.sightings import GpuSighting, Sightings
from vram.model.ledger import Confidence, Entry, known_bytes
from vram.units import counted, size


def remainder_entries(seen: Sightings, gpu: GpuSighting, rest: int) -> list[Entry]:
    """Entries that sum to exactly *rest*, bytes in use that nothing so far accounts for."""
    unsized = unsized_entries(seen, gpu)
    overhead = overhead_entry(seen, gpu, rest, whole=not unsized)
    entries = [overhead] if overhead else []
    rest -= known_bytes(entries)
    if unsized:
        return entries + _without_figures(unsized, rest)
    openers = open_on(seen, gpu) if gpu.lists not in ("ok", "unsupported") else []
    if openers and rest:
        return [*entries, _unlisted(openers, rest)]
    return entries + ([unexplained(seen, rest)] if rest else [])


def _without_figures(unsized: list[Entry], rest: int) -> list[Entry]:
    """Processes whose bytes the driver does not tell share what is left."""
    if len(unsized) == 1:
        lone = f"it is the only one without a figure: the {size(rest)} left over are its"
        return [_with(unsized[0], rest, lone, "unknown" if unsized[0].confidence == "unknown" else "likely")]
    part = f"it holds a part of {size(rest)} that {len(unsized)} such processes share"
    entries = [_with(entry, None, part, "unknown") for entry in unsized]
    return entries + ([_together(unsized, rest)] if rest else [])


def _with(entry: Entry, nbytes: int | None, words: str, confidence: Confidence) -> Entry:
    return replace(entry, nbytes=nbytes, evidence=(*entry.evidence, words), confidence=confidence)


def _together(unsized: list[Entry], nbytes: int) -> Entry:
    """The bytes of several processes; who keeps which of them is not told."""
    people = {person.pid: person for entry in unsized for person in entry.holders}
    pids = ", ".join(map(str, sorted(people)))
    shared = f"held by pids {pids} together: the driver gives no figure for any of them"
    return Entry(
        kind="process",
        nbytes=nbytes,
        co_holders=tuple(people[pid] for pid in sorted(people)),
        sharing="together",
        evidence=(shared,),
        confidence="unknown",
    )


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

"""What is left when every claim is counted: overhead, hidden from us, or unexplained."""

from __future__ import annotations

from typing import Literal

from vram.ledger.holders import holder
from vram.ledger.overhead import open_on, overhead_entry, pids_of
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry
from vram.units import counted, size


def remainder_entries(seen: Sightings, gpu: GpuSighting, rest: int) -> list[Entry]:
    """Entries that sum to exactly *rest*, bytes in use that nothing so far accounts for."""
    unknown = [charge for charge in gpu.charges if charge.nbytes is None]
    overhead = overhead_entry(seen, gpu, rest, whole=not unknown)
    entries = [overhead] if overhead else []
    rest -= sum(entry.nbytes for entry in entries)
    if unknown:
        return entries + _without_figures(seen, unknown, rest)
    openers = open_on(seen, gpu) if gpu.lists not in ("ok", "unsupported") else []
    if openers and rest:
        return [*entries, _unlisted(openers, rest)]
    return entries + ([unexplained(seen, rest)] if rest else [])


def _without_figures(seen: Sightings, unknown: list[Charge], rest: int) -> list[Entry]:
    """Processes whose bytes the driver does not tell share what is left."""
    lone = len(unknown) == 1
    entries = [
        Entry(
            kind="process",
            nbytes=rest if lone else 0,
            holder=holder(seen, charge.process, charge.lists),
            evidence=(
                f"the driver lists pid {charge.process.pid} and does not say how much it uses",
                f"it is the only one without a figure: the {size(rest)} left over are its"
                if lone
                else f"it holds a part of {size(rest)} that {len(unknown)} such processes share",
            ),
            confidence="likely" if lone else "unknown",
        )
        for charge in unknown
    ]
    if not lone and rest:
        pids = ", ".join(str(charge.process.pid) for charge in unknown)
        shared = f"held by pids {pids} together: the driver gives no figure for any of them"
        entries.append(Entry(kind="unattributed", nbytes=rest, evidence=(shared,), confidence="unknown"))
    return entries


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

"""What is left when every claim is counted: overhead, hidden from us, or unexplained."""

from __future__ import annotations

from typing import Literal

from vram.ledger.holders import holder
from vram.ledger.sightings import Charge, GpuSighting, Sightings
from vram.model.ledger import Entry
from vram.units import KIB, MIB, counted, size

# A context uses more than its process is charged: 526.81 against 518 MiB (H200, driver 580.159).
CONTEXT_OVERHEAD = 9024 * KIB
# Drivers differ; up to this much for a context is still called overhead.
_MOST_OVERHEAD = 16 * MIB


def remainder_entries(seen: Sightings, gpu: GpuSighting, rest: int) -> list[Entry]:
    """Entries that sum to exactly *rest*, bytes in use that nothing so far accounts for."""
    unknown = [charge for charge in gpu.charges if charge.nbytes is None]
    entries = [_overhead(len(gpu.charges), rest, bool(unknown))] if rest and gpu.charges else []
    rest -= sum(entry.nbytes for entry in entries)
    if unknown:
        return entries + _without_figures(seen, unknown, rest)
    return entries + ([_unexplained(seen, rest)] if rest else [])


def _overhead(contexts: int, rest: int, more_to_come: bool) -> Entry:
    fits = rest <= contexts * _MOST_OVERHEAD and not more_to_come
    nbytes = rest if fits else min(rest, contexts * CONTEXT_OVERHEAD)
    return Entry(
        kind="overhead",
        nbytes=nbytes,
        evidence=(
            f"{counted(contexts, 'context')}; each uses about {size(CONTEXT_OVERHEAD)} more than its process"
            " is charged (measured on an H200, driver 580.159)",
        ),
        confidence="likely",
    )


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


def _unexplained(seen: Sightings, rest: int) -> Entry:
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
    if seen.unreadable.processes:
        users = ", ".join(seen.unreadable.users) or "other users"
        return (
            "permission",
            f"the open files of {seen.unreadable.processes} processes of {users} may not be read",
        )
    return None, "no readable process has a device file, an exported allocation or a dma-buf that explains it"

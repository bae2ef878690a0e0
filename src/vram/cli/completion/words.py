"""The words that only this machine knows now: who holds memory, who is parked, which GPUs there are.

Asked for while somebody waits for TAB: quick, and silent about whatever fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from vram.report.escape import ascii_only
from vram.units import size

if TYPE_CHECKING:
    from vram.model.ledger import GpuLedger, Holder

DEADLINE_S = 1.0
LONGEST = 60


def live(kind: str) -> list[str]:
    """A line for each word of *kind*: the word, a tab, what it means."""
    found = {"pid": _holders, "gpu": _gpus, "parked": _parked}[kind]()
    return [f"{word}\t{_meaning(text)}" for word, text in found]


def _holders() -> Iterator[tuple[int, str]]:
    """Everybody who keeps memory, largest first."""
    nbytes: dict[int, int] = defaultdict(int)
    names: dict[int, str] = {}
    for gpu in _ledgers():
        for entry in gpu.entries:
            for holder in entry.holders:
                if holder.alive:
                    nbytes[holder.pid] += entry.nbytes or 0
                    names[holder.pid] = _name(holder)
    for pid in sorted(names, key=lambda pid: (-nbytes[pid], pid)):
        yield pid, f"{size(nbytes[pid])} {names[pid]}"


def _gpus() -> Iterator[tuple[int, str]]:
    for gpu in _ledgers():
        yield gpu.index, gpu.name


def _parked() -> Iterator[tuple[int, str]]:
    from vram.host.local import LocalHost
    from vram.reclaim.journal import parked_now

    for process in parked_now(LocalHost()):
        yield process.pid, "parked"


def _ledgers() -> tuple[GpuLedger, ...]:
    from vram.host.local import LocalHost
    from vram.ledger.build import build_ledger
    from vram.probes.survey import survey

    host = LocalHost(read_ahead_s=DEADLINE_S)
    return build_ledger(survey(host, deadline_s=DEADLINE_S)).gpus


def _name(holder: Holder) -> str:
    return holder.command or "?"


def _meaning(text: str) -> str:
    """One short line without a backslash: shells read those, and a process chose these words."""
    line = ascii_only(text).replace("\\", "/")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."

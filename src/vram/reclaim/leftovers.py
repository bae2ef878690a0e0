"""Which findings speak of leftovers: memory that nobody works with, and whose keeper may be ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from vram.diagnosis.health import is_healthy, is_stuck
from vram.model.finding import Finding
from vram.reclaim.accounts import Account, keepers

KEPT_FOR_NOBODY = ("VR101", "VR103", "VR104", "VR203")
"""A dead process's memory, an exported handle, a dma-buf, a zombie's memory: kept by somebody else."""

STOPPED = "VR201"

CODES = (*KEPT_FOR_NOBODY, STOPPED)


class Leftover(Struct, frozen=True):
    """Everybody who must end before a finding's bytes come back."""

    finding: Finding
    accounts: tuple[Account, ...]

    @property
    def nbytes(self) -> int:
        return self.finding.nbytes or 0


def leftovers(findings: Iterable[Finding], known: dict[int, Account]) -> Iterator[Leftover]:
    """The leftovers among *findings*, with all their keepers."""
    for finding in findings:
        if finding.code in CODES and finding.pids and all(pid in known for pid in finding.pids):
            yield Leftover(finding, _everybody(finding, known))


def doubt(leftover: Leftover) -> str | None:
    """Why this may be no leftover after all; then only its pid, given by name, counts."""
    for account in leftover.accounts:
        pid = account.holder.pid
        if is_stuck(account.holder):
            return f"pid {pid} waits inside the kernel or is exiting: no signal reaches it now"
        if not account.certain:
            return f"pid {pid} is only likely to be the keeper"
        if leftover.finding.code == STOPPED:
            if account.holder.state == "t":
                return f"pid {pid} is held by a debugger"
            if account.holder.state != "T":
                return f"pid {pid} shares these bytes, and is not stopped"
        elif account.own and is_healthy(account.holder):
            return f"pid {pid} also works with GPU memory of its own"
    return None


def _everybody(finding: Finding, known: dict[int, Account]) -> tuple[Account, ...]:
    entries = (
        entry
        for pid in finding.pids
        for entry in (known[pid].own if finding.code == STOPPED else known[pid].kept)
    )
    pids = dict.fromkeys((*finding.pids, *(holder.pid for entry in entries for holder in keepers(entry))))
    return tuple(known[pid] for pid in pids if pid in known)

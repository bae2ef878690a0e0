"""What of a ledger concerns one process: what it holds, keeps of others, or is charged with."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from vram.model.finding import Finding
from vram.model.ledger import Entry, GpuLedger, Ledger


def concerning(ledger: Ledger, pid: int) -> Ledger:
    """Return *ledger* with only the entries of *pid*, on the GPUs where it has any."""
    gpus = (_narrowed(gpu, pid) for gpu in ledger.gpus)
    return replace(ledger, gpus=tuple(gpu for gpu in gpus if _is_there(gpu)))


def findings_about(findings: Iterable[Finding], ledger: Ledger, pid: int) -> tuple[Finding, ...]:
    """The findings that name *pid*, or who keeps what it is charged with: a dead one is named by nobody."""
    charged = (entry for gpu in ledger.gpus for entry in gpu.accounted if entry.charged_pid == pid)
    wanted = {pid}.union(*map(pids_of, charged))
    return tuple(each for each in findings if not wanted.isdisjoint(each.pids))


def pids_of(entry: Entry) -> set[int]:
    """Everybody whom an entry names: its holder, co-holders, and the pid that the driver charges."""
    named = {each.pid for each in entry.holders}
    return named | ({entry.charged_pid} if entry.charged_pid is not None else set())


def _narrowed(gpu: GpuLedger, pid: int) -> GpuLedger:
    system = gpu.system
    if system is not None:
        system = replace(system, entries=_theirs(system.entries, pid), used_bytes=None)
    return replace(
        gpu,
        entries=_theirs(gpu.entries, pid),
        open_only=tuple(each for each in gpu.open_only if each.holder.pid == pid),
        system=system if system is not None and system.entries else None,
        notes=(),
    )


def _theirs(entries: Iterable[Entry], pid: int) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if pid in pids_of(entry))


def _is_there(gpu: GpuLedger) -> bool:
    return bool(gpu.entries or gpu.open_only or gpu.system)

"""Who holds what, process by process: the one view of the ledger that every choice of processes is made from.

An entry belongs to a process in one of two ways: it is charged to it, or the process holds it although it is
charged to another process, which is mostly dead. Only living processes are listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from vram.model.finding import Finding
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, known_bytes
from vram.protected import role


class ProcessMemory(Struct, frozen=True, kw_only=True):
    """One living process and its memory on the ledger's GPUs.

    ``charged`` entries are its own. ``retained`` ones it holds without being charged: memory of a dead
    process, an exported allocation, bytes that it has together with others. On each of ``gpus`` it has
    an entry, or at least the GPU's files open; on each of ``memory_gpus`` it has an entry, or may have
    one because the GPU does not report who has what.
    """

    holder: Holder
    charged: tuple[Entry, ...] = ()
    retained: tuple[Entry, ...] = ()
    gpus: tuple[int, ...] = ()
    memory_gpus: tuple[int, ...] = ()
    charged_by_gpu: dict[int, int | None] = {}
    """Bytes for each GPU that it is charged on, as far as they are known; None where none are."""
    idle: bool = False
    """Every GPU that it is on reports no work, and the process sleeps."""
    unreported_gpus: tuple[int, ...] = ()
    """Those of ``gpus`` that do not report who has what: it may have more than is known."""

    @property
    def pid(self) -> int:
        return self.holder.pid

    @property
    def charged_bytes(self) -> int:
        """What it is charged with, as far as it is known."""
        return known_bytes(self.charged)

    @property
    def nbytes(self) -> int:
        """Everything that it holds, alone or with others, as far as it is known."""
        return known_bytes((*self.charged, *self.retained))

    @property
    def has_unknown_size(self) -> bool:
        """Whether it is charged with memory whose size the driver does not report."""
        return any(entry.nbytes is None for entry in self.charged)

    @property
    def co_holders(self) -> tuple[int, ...]:
        """Other living pids that hold some of the same entries, ascending."""
        named = {holder.pid for entry in (*self.charged, *self.retained) for holder in living_holders(entry)}
        return tuple(sorted(named - {self.pid}))

    @property
    def certain(self) -> bool:
        """Whether its pid surely names the process that is meant: a driver's list may have the host's pids.

        Retained memory does not matter here: it was found by open files, which are read where we are.
        """
        return all(entry.confidence == "fact" for entry in self.charged)

    @property
    def uses_mps(self) -> bool:
        return "mps" in self.holder.lists

    @property
    def protected(self) -> str | None:
        """What part of the system it is; None where it is none, and may be acted on."""
        return role(self.pid, self.holder)

    def charged_on(self, gpus: Sequence[int]) -> int:
        """What it is charged with on *gpus*, as far as it is known."""
        return sum(self.charged_by_gpu.get(gpu) or 0 for gpu in gpus)


def processes(ledger: Ledger) -> dict[int, ProcessMemory]:
    """Every living process that holds memory of the ledger's GPUs or has their files open, by pid."""
    drafts: dict[int, _Draft] = {}
    for gpu in ledger.gpus:
        for holder, entry in _held(gpu):
            draft = drafts.get(holder.pid)
            if draft is None:
                draft = drafts[holder.pid] = _Draft(holder)
            draft.add(gpu, entry)
    return {pid: draft.finished() for pid, draft in drafts.items()}


def freed_by(ledger: Ledger, pids: Sequence[int], gpus: Sequence[int] = ()) -> tuple[int, ...]:
    """For each of *pids*, ended in that order, the bytes that are freed on *gpus* (empty: all) then.

    Bytes with several holders are freed by the last of them, and never where one is left out.
    """
    freed = dict.fromkeys(pids, 0)
    for gpu in ledger.gpus:
        for entry in gpu.accounted if not gpus or gpu.index in gpus else ():
            living = {holder.pid for holder in living_holders(entry)}
            if living and living <= freed.keys():
                freed[max(living, key=pids.index)] += entry.nbytes or 0
    return tuple(freed[pid] for pid in pids)


def identity(holder: Holder | None) -> tuple[int, int | None] | None:
    """Tell two processes apart that had the same pid one after the other."""
    return None if holder is None else (holder.pid, holder.started_at)


def living_holder(entry: Entry) -> Holder | None:
    """The living process that is known to hold *entry*, if there is one."""
    holder = entry.holder
    if holder is None or not holder.alive:
        return None
    # A process that has a dead one's pid now is a newcomer that was given a used number.
    newcomer = entry.kind == "orphaned" and holder.pid == entry.charged_pid
    return None if newcomer else holder


def living_holders(entry: Entry) -> tuple[Holder, ...]:
    """Everyone alive who must release *entry* before its bytes return."""
    first = living_holder(entry)
    # Nearly all entries have one holder, and every view of a reading asks this of each.
    others = tuple(holder for holder in entry.co_holders if holder.alive) if entry.co_holders else ()
    return others if first is None else (first, *others)


def in_use(entry: Entry) -> bool:
    """A living process is charged with this entry."""
    return entry.kind_facts.charged and entry.holder is not None and entry.holder.alive


def is_stopped(holder: Holder) -> bool:
    """Stopped by a signal (T) or by a debugger (t): it runs nothing and keeps everything."""
    return holder.alive and holder.state in ("T", "t")


def is_stuck(holder: Holder) -> bool:
    """Waiting inside the kernel (D), deaf to SIGKILL or already exiting: no signal changes anything now."""
    return holder.alive and (holder.state == "D" or holder.exiting or holder.kill_pending)


def ignores_kill(holder: Holder) -> bool:
    """SIGKILL was sent, and it has not even begun to exit."""
    return holder.alive and holder.kill_pending and not holder.exiting


def is_healthy(holder: Holder) -> bool:
    """Alive, running from a file that still exists, and able to answer a signal."""
    return holder.alive and not holder.executable_deleted and not is_stopped(holder) and not is_stuck(holder)


def is_silent(gpu: GpuLedger) -> bool:
    """The driver reports nothing of this GPU's memory, neither of the whole nor of its parts."""
    return gpu.driver == "nvidia" and gpu.total_bytes is None and not gpu.instances


def reports_holders(gpu: GpuLedger) -> bool:
    """Whether a process that is not named on the GPU surely has nothing there."""
    broken = gpu.driver == "nvidia" and gpu.status in ("failed", "timeout", "lost")
    return not (is_silent(gpu) or broken)


class _Draft:
    def __init__(self, holder: Holder) -> None:
        self._holder = holder
        self._charged: list[Entry] = []
        self._retained: list[Entry] = []
        self._gpus: dict[int, GpuLedger] = {}
        self._memory_gpus: set[int] = set()
        self._by_gpu: dict[int, int | None] = {}

    def add(self, gpu: GpuLedger, entry: Entry | None) -> None:
        self._gpus[gpu.index] = gpu
        if entry is None:
            return
        self._memory_gpus.add(gpu.index)
        if not (in_use(entry) and entry.holder is not None and entry.holder.pid == self._holder.pid):
            self._retained.append(entry)
            return
        self._charged.append(entry)
        if entry.nbytes is None:
            self._by_gpu.setdefault(gpu.index, None)
        else:
            self._by_gpu[gpu.index] = (self._by_gpu.get(gpu.index) or 0) + entry.nbytes

    def finished(self) -> ProcessMemory:
        unreported = {at for at, gpu in self._gpus.items() if not reports_holders(gpu)}
        resting = all(gpu.facts is not None and gpu.facts.utilization == 0 for gpu in self._gpus.values())
        return ProcessMemory(
            holder=self._holder,
            charged=tuple(self._charged),
            retained=tuple(self._retained),
            gpus=tuple(sorted(self._gpus)),
            memory_gpus=tuple(sorted(self._memory_gpus | unreported)),
            charged_by_gpu=self._by_gpu,
            idle=resting and self._holder.state == "S",
            unreported_gpus=tuple(sorted(unreported)),
        )


def _held(gpu: GpuLedger) -> Iterator[tuple[Holder, Entry | None]]:
    """Each living process on *gpu* with an entry that it holds; None where it only has something open."""
    for entry in gpu.accounted:
        for holder in living_holders(entry):
            yield holder, entry
    for each in gpu.open_only:
        if each.holder.alive:
            yield each.holder, None
    for entry in gpu.system.entries if gpu.system and gpu.total_bytes != 0 else ():
        for holder in living_holders(entry):
            yield holder, None


# ---- what of a ledger concerns one process ----


def concerning(ledger: Ledger, pid: int) -> Ledger:
    """Return *ledger* with only the entries of *pid*, on the GPUs where it has any."""
    gpus = (_narrowed(gpu, pid) for gpu in ledger.gpus)
    return replace(ledger, gpus=tuple(gpu for gpu in gpus if _is_there(gpu)))


def findings_about(findings: Iterable[Finding], pid: int) -> tuple[Finding, ...]:
    """The findings that name *pid*, or that are about what it left behind: few name a dead one."""
    return tuple(
        each for each in findings if pid in each.pids or any(hold.dead_pid == pid for hold in each.holds)
    )


def pids_of(entry: Entry) -> set[int]:
    """The pids that an entry names: its holder, co-holders, and the pid that the driver charges."""
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

"""One row per process: what ``vram``, ``vram ps`` and ``vram top`` list, trouble first, then by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from msgspec import Struct

from vram.diagnosis.held import is_stopped
from vram.ledger.processes import identity, living_holders, processes
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger, OpenOnly, ParkedProcess
from vram.model.observation import HostFacts
from vram.report.phrases import mig_device, workload
from vram.units import counted, size

State = Literal[
    "ghost",
    "unattributed",
    "stuck",
    "exiting",
    "stopped",
    "hidden",
    "parked",
    "lent",
    "idle",
    "ok",
    "windows",
    "open",
]
"""What a row's process is doing with its memory; STATES says what each means."""


class StateFacts(NamedTuple):
    """How a state is shown, whether somebody should do something about it, and what it means."""

    label: str
    trouble: bool
    meaning: str


STATES: dict[State, StateFacts] = {
    "ghost": StateFacts("GHOST", True, "the owner of this memory is dead; this process still holds it"),
    "unattributed": StateFacts("UNKNOWN", True, "in use, and no holder was found"),
    "stuck": StateFacts("STUCK", True, "waits inside the kernel; no signal reaches it"),
    "exiting": StateFacts("EXITING", True, "is exiting, and has not released its memory yet"),
    "stopped": StateFacts("STOPPED", True, "stopped by a signal or a debugger; keeps its memory"),
    "hidden": StateFacts("hidden", False, "cannot be seen from here"),
    "parked": StateFacts("parked", False, "paused; its GPU memory is in host memory"),
    "lent": StateFacts("lent", False, "paused for a `vram borrow`; its GPU memory is in host memory"),
    "idle": StateFacts("idle", False, "sleeps, and its GPUs do no work"),
    "ok": StateFacts("ok", False, "in use"),
    "windows": StateFacts("windows", False, "a program of Windows"),
    "open": StateFacts("open", False, "has a GPU's files open, and holds no memory"),
}

# A snapshot may claim any ancestry; a real one is this deep only by accident.
_DEEPEST = 16
_HIDDEN_BY = {
    "namespace": "in another PID namespace",
    "permission": "root can name it",
    "windows": "Windows counts it for the Linux side",
    "end": "ended while it was read",
}


class ProcessRow(Struct, frozen=True, kw_only=True):
    """A process and the GPU memory that it holds; or memory that no visible process accounts for.

    ``gpus`` are numbers, or MIG devices such as "0:1". ``nbytes`` is the sum over them, None where
    the driver does not report it. ``pid`` is None where there is no process to name; under WSL2 it
    may be a Windows pid (state "windows"). ``dead_pids`` are the dead owners of memory that a ghost
    holds, ``co_holders`` the others that hold the same bytes, ``workers`` the processes that hold
    nothing of their own and belong to this one. ``group`` is the container, job or unit.
    """

    gpus: tuple[str, ...]
    nbytes: int | None
    nbytes_by_gpu: dict[str, int | None]
    pid: int | None
    started_at: int | None = None
    user: str | None = None
    age_s: float | None = None
    state: State
    command: str | None = None
    note: str = ""
    parent: int | None = None
    group: str | None = None
    dead_pids: tuple[int, ...] = ()
    co_holders: tuple[int, ...] = ()
    workers: tuple[int, ...] = ()
    certain: bool = True
    """False: it is likely, and not proven, that this process holds the memory."""

    @property
    def trouble(self) -> bool:
        """Whether somebody should do something about it."""
        return STATES[self.state].trouble


class ProcessesReport(Struct, frozen=True, kw_only=True):
    """``vram ps --json``. The rows are in the order of the table."""

    schema: Literal[1] = 1
    taken_at: str
    host: HostFacts
    processes: tuple[ProcessRow, ...]


def report(ledger: Ledger, processes: tuple[ProcessRow, ...]) -> ProcessesReport:
    """Return *processes* as `vram ps --json` has them."""
    return ProcessesReport(taken_at=ledger.taken_at, host=ledger.host, processes=processes)


def rows(ledger: Ledger, *, every_process: bool = False) -> tuple[ProcessRow, ...]:
    """Return a row for each process of *ledger*, trouble first, then the largest.

    Workers and other co-holders are counted in the row that they belong to, and processes that
    merely have a GPU's files open are left out; with *every_process* each has a row of its own.
    """
    drafts = _Drafts()
    for gpu in ledger.gpus:
        for entry in gpu.accounted:
            drafts.add(gpu, entry)
    for process in ledger.parked:
        drafts.park(process)
    with_files = _with_files(ledger)
    if every_process:
        drafts.unfold(with_files)
    else:
        drafts.fold(with_files)
    idle = {pid for pid, memory in processes(ledger).items() if memory.idle}
    return tuple(sorted((draft.finished(idle) for draft in drafts), key=rank))


def rank(row: ProcessRow) -> tuple[bool, bool, int, int]:
    """The order of the table: trouble first, then by size; what holds nothing comes last."""
    return not row.trouble, row.state == "open", -(row.nbytes or 0), row.pid or 0


_ORDERS: dict[str, Callable[[ProcessRow], tuple[Any, ...]]] = {
    "trouble": rank,
    "size": lambda row: (-(row.nbytes or 0),),
    "gpu": lambda row: tuple(map(_place_order, row.gpus)),
    "pid": lambda row: (row.pid or 0,),
    "user": lambda row: (row.user or "",),
    "age": lambda row: (-(row.age_s or 0.0),),
    "state": lambda row: (list(STATES).index(row.state),),
    "command": lambda row: (row.command or "",),
}


def in_order(found: tuple[ProcessRow, ...], by: str, *, reverse: bool = False) -> tuple[ProcessRow, ...]:
    """Return the rows sorted by one of "trouble", "size", "gpu", "pid", "user", "age", "state", "command".

    Rows that are equal in that stay in the order of "trouble". The largest and the oldest come first.
    """
    return tuple(sorted(sorted(found, key=rank), key=_ORDERS[by], reverse=reverse))


class _Draft:
    """A row while it is being put together."""

    def __init__(self, holder: Holder | None, state: State | None = None, note: str = "") -> None:
        self.holder = holder
        self.state = state
        self.notes = [note] if note else []
        self.pid = holder.pid if holder else None
        self.user = holder.user if holder else None
        self.command = holder.command if holder else None
        self.by_gpu: dict[str, int | None] = {}
        self.kinds: dict[str, int] = {}
        self.left_bytes = 0
        self.dead_pids: dict[int, None] = {}
        self.co_holders: dict[int, Holder] = {}
        self.workers: dict[int, Holder] = {}
        self.one_of = False
        self.certain = True

    def count(self, place: str, entry: Entry) -> None:
        known = self.by_gpu.get(place)
        self.by_gpu[place] = known if entry.nbytes is None else (known or 0) + entry.nbytes
        if entry.nbytes is not None:
            self.kinds[entry.kind] = self.kinds.get(entry.kind, 0) + entry.nbytes
        self.certain = self.certain and entry.confidence == "fact"

    @property
    def nbytes(self) -> int | None:
        known = [nbytes for nbytes in self.by_gpu.values() if nbytes is not None]
        return sum(known) if known or not self.by_gpu else None

    def finished(self, idle: set[int]) -> ProcessRow:
        holder = self.holder
        places = sorted(self.by_gpu, key=_place_order)
        return ProcessRow(
            gpus=tuple(places),
            nbytes=self.nbytes,
            nbytes_by_gpu={place: self.by_gpu[place] for place in places},
            pid=self.pid,
            started_at=holder.started_at if holder else None,
            user=self.user,
            age_s=holder.age_s if holder else None,
            state=self._state(idle),
            command=self.command,
            note=", ".join(filter(None, (*self._facts(), *self.notes))),
            parent=holder.parent if holder else None,
            group=(workload(holder.workload) or None) if holder else None,
            dead_pids=tuple(self.dead_pids),
            co_holders=tuple(self.co_holders),
            workers=tuple(self.workers),
            certain=self.certain,
        )

    def _state(self, idle: set[int]) -> State:
        if self.state is not None:
            return self.state
        assert self.holder is not None
        if self.left_bytes:
            return "ghost"
        if self.holder.exiting:
            return "exiting"
        if self.holder.state == "D":
            return "stuck"
        if is_stopped(self.holder):
            return "stopped"
        return "idle" if self.holder.pid in idle else "ok"

    def _facts(self) -> Iterator[str]:
        if self.left_bytes:
            part = f"{size(self.left_bytes)} of it " if self.left_bytes != self.nbytes else ""
            likely = "" if self.certain else "likely "
            yield f"{part}{likely}{self._whose()}"
        if self.co_holders:
            others = f"{len(self.co_holders)} more"
            yield f"held by it or {others}" if self.one_of else f"+{others}"
        if self.workers:
            yield f"+{counted(len(self.workers), 'worker')}"
        if self.kinds.get("cached"):
            yield f"{size(self.kinds['cached'])} cached"
        if self.holder and self.holder.alive and self.holder.executable_deleted:
            yield "its program file was deleted"

    def _whose(self) -> str:
        if not self.dead_pids:
            return "memory of a dead exporter"
        first, *more = self.dead_pids
        return f"memory of dead pid {first}" + (f" and {len(more)} more" if more else "")


class _Drafts:
    """All rows while they are being put together, by process."""

    def __init__(self) -> None:
        self._by_process: dict[object, _Draft] = {}

    def __iter__(self) -> Iterator[_Draft]:
        return iter(self._by_process.values())

    def add(self, gpu: GpuLedger, entry: Entry) -> None:
        if not entry.kind_facts.held or entry.nbytes == 0:
            return
        place = mig_device(gpu, entry) or str(gpu.index)
        living = living_holders(entry)
        if entry.kind_facts.charged and living and entry.holder is not None and entry.holder.alive:
            draft = self._of(entry.holder)
            # Forked children that have its files: its memory returns when they have ended too.
            draft.workers.update((each.pid, each) for each in living if each.pid != entry.holder.pid)
        elif entry.kind in ("orphaned", "exported") and living:
            draft = self._of(living[0])
            draft.left_bytes += entry.nbytes or 0
            if entry.charged_pid is not None:
                draft.dead_pids[entry.charged_pid] = None
            draft.co_holders.update((each.pid, each) for each in living[1:])
            draft.one_of = draft.one_of or entry.sharing == "one"
        else:
            draft = self._without_process(place, entry)
        draft.count(place, entry)

    def park(self, process: ParkedProcess) -> None:
        holder = Holder(
            pid=process.pid, started_at=None, user=process.user, command=process.command, alive=True
        )
        note = f"{size(process.nbytes)} in host memory"
        if process.lent_to is not None:
            note += f", lent to pid {process.lent_to}"
        draft = _Draft(holder, "parked" if process.lent_to is None else "lent", note)
        draft.by_gpu = {str(gpu): 0 for gpu in process.gpus}
        self._by_process["parked", process.pid] = draft

    def fold(self, with_files: dict[int, OpenOnly]) -> None:
        """Count processes that hold nothing of their own in the row of the parent that does."""
        rows = {draft.pid: draft for draft in self if draft.pid is not None}
        for draft in self:
            # A worker with memory of its own has a row of its own.
            draft.workers = {pid: worker for pid, worker in draft.workers.items() if pid not in rows}
        for pid, each in with_files.items():
            owner = _owner(pid, with_files, rows)
            if owner is not None:
                owner.workers[pid] = each.holder

    def unfold(self, with_files: dict[int, OpenOnly]) -> None:
        """Give everybody a row who has a GPU's files open."""
        for draft in list(self):
            for worker in draft.workers.values():
                self._stand_alone(worker, "open", f"has the files of pid {draft.pid}")
            for co_holder in draft.co_holders.values():
                self._stand_alone(co_holder, "ghost", f"holds the same memory as pid {draft.pid}")
            draft.workers = {}
        for each in with_files.values():
            note = f"has the files of pid {each.inherited_from}" if each.inherited_from else ""
            if each.exported_bytes:
                note = f"has a handle on {size(each.exported_bytes)} of another process"
            self._stand_alone(each.holder, "open", note)

    def _stand_alone(self, holder: Holder, state: State, note: str) -> None:
        """A row of a process that holds no memory of its own, unless it has a row already."""
        self._by_process.setdefault(identity(holder), _Draft(holder, state, note))

    def _of(self, holder: Holder) -> _Draft:
        return self._by_process.setdefault(identity(holder), _Draft(holder))

    def _without_process(self, place: str, entry: Entry) -> _Draft:
        """The row of bytes that no living, visible process is known to hold."""
        if entry.sharing == "together":
            note = f"{counted(len(entry.co_holders), 'process')} together, how much each is unknown"
            return self._nameless("together", place, "ok", note)
        if entry.kind == "windows" and entry.windows is not None:
            draft = self._nameless("windows", entry.windows.pid, "windows", "")
            draft.pid, draft.user, draft.command = entry.windows.pid, "Windows", entry.windows.name
            return draft
        if entry.kind == "unattributed":
            return self._nameless("unattributed", place, "unattributed", "no holder was found")
        if entry.kind == "guest":
            return self._nameless("guest", place, "hidden", "Linux processes, as Windows counts them")
        pid = entry.holder.pid if entry.holder else entry.charged_pid
        if entry.kind == "hidden":
            draft = self._nameless(
                "hidden", pid or place, "hidden", _HIDDEN_BY.get(entry.hidden_by or "", "")
            )
        else:
            draft = self._nameless("dead", pid or place, "ghost", "dead; no visible process has its files")
        draft.pid = pid
        return draft

    def _nameless(self, what: str, which: object, state: State, note: str) -> _Draft:
        return self._by_process.setdefault((what, which), _Draft(None, state, note))


def _with_files(ledger: Ledger) -> dict[int, OpenOnly]:
    """Everybody who has a GPU's files open and is charged nothing on any GPU."""
    charged = {
        holder.pid for gpu in ledger.gpus for entry in gpu.accounted for holder in living_holders(entry)
    }
    return {
        each.holder.pid: each
        for gpu in ledger.gpus
        for each in gpu.open_only
        if each.holder.alive and each.holder.pid not in charged
    }


def _owner(pid: int, with_files: dict[int, OpenOnly], rows: dict[int, _Draft]) -> _Draft | None:
    """The row of the process whose files *pid* inherited, or of its nearest ancestor that has a row."""
    for _ in range(_DEEPEST):
        each = with_files.get(pid)
        if each is None:
            return None
        above = each.inherited_from or each.holder.parent
        if above is None:
            return None
        if above in rows:
            return rows[above]
        pid = above
    return None


def _place_order(place: str) -> list[int]:
    return [int(part) for part in place.split(":")]

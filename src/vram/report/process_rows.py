"""One row per process: what ``vram``, ``vram ps`` and ``vram top`` list, trouble first, then by size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from msgspec import Struct

from vram.ledger.holds import find_holds, open_only
from vram.ledger.processes import identity
from vram.model.hold import STATES, Hold, Identity, State, place_order
from vram.model.ledger import Holder, Ledger
from vram.model.observation import HostFacts
from vram.model.process import Job
from vram.report.phrases import workload
from vram.units import counted, size

_HIDDEN_BY = {
    "namespace": "in another PID namespace",
    "permission": "root can name it",
    "windows": "Windows counts it for the Linux side",
    "end": "ended while it was read",
}


class ProcessRow(Struct, frozen=True, kw_only=True):
    """A process and the GPU memory that it holds; or memory that no visible process accounts for.

    ``places`` are its GPUs as people write them: numbers, or MIG devices such as "0:1"; ``nbytes_by_place``
    has their sizes, and ``nbytes`` the sum, None where the driver does not report it. ``pid`` is None where
    there is no process to name; under WSL2 it may be a Windows pid (state "windows"). ``dead_pids`` are the
    dead owners of memory that a ghost holds, ``co_holders`` the others that hold the same bytes, ``workers``
    the processes that hold nothing of their own and belong to this one. ``group`` is the container, Slurm
    job or unit, ``job`` what the process was launched as a part of.
    """

    gpus: tuple[int, ...]
    places: tuple[str, ...]
    nbytes: int | None
    nbytes_by_place: dict[str, int | None]
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
    job: Job | None = None

    @property
    def trouble(self) -> bool:
        """Whether its user should act on it."""
        return STATES[self.state].trouble

    @property
    def identities(self) -> tuple[Identity, ...]:
        """The processes whose memory it shows; none where there is no process to name."""
        return () if self.pid is None else ((self.pid, self.started_at),)


class JobRow(ProcessRow, frozen=True, kw_only=True):
    """Several processes of one job as one row; the first rank stands for all, ``others`` are the rest."""

    others: tuple[Identity, ...]

    @property
    def identities(self) -> tuple[Identity, ...]:
        return (*super().identities, *self.others)


class ProcessesReport(Struct, frozen=True, kw_only=True):
    """``vram ps --json``. The rows are in the order of the table."""

    schema: Literal[2] = 2
    taken_at: str
    host: HostFacts
    processes: tuple[ProcessRow, ...]


def report(ledger: Ledger, processes: tuple[ProcessRow, ...]) -> ProcessesReport:
    return ProcessesReport(taken_at=ledger.taken_at, host=ledger.host, processes=processes)


def rows(ledger: Ledger, *, every_process: bool = False) -> tuple[ProcessRow, ...]:
    """Return a row for each hold of *ledger*, trouble first, then the largest.

    Workers and other co-holders are counted in the row that they belong to, and processes that
    merely have a GPU's files open are left out; with *every_process* each has a row of its own.
    """
    holds = find_holds(ledger)
    found = [row_of(hold, shows_workers=not every_process) for hold in holds]
    if every_process:
        found += _stand_alone(ledger, holds)
    return tuple(sorted(found, key=rank))


def rank(row: ProcessRow) -> tuple[bool, bool, int, int]:
    """The order of the table: trouble first, then by size; what holds nothing comes last."""
    return not row.trouble, row.state == "open", -(row.nbytes or 0), row.pid or 0


_ORDERS: dict[str, Callable[[ProcessRow], tuple[Any, ...]]] = {
    "trouble": rank,
    "size": lambda row: (-(row.nbytes or 0),),
    "gpu": lambda row: tuple(map(place_order, row.places)),
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


def row_of(hold: Hold, *, shows_workers: bool = True) -> ProcessRow:
    """The row of one hold."""
    holder = hold.holder if hold.what != "together" else None
    workers = hold.workers if shows_workers else ()
    by_place = hold.bytes_by_place()
    if hold.parked is not None:
        by_place = {str(gpu): 0 for gpu in hold.parked.gpus}
    return ProcessRow(
        gpus=tuple(sorted({int(place.partition(":")[0]) for place in by_place})),
        places=tuple(by_place),
        nbytes=hold.nbytes,
        nbytes_by_place=by_place,
        pid=_pid(hold),
        started_at=holder.started_at if holder else None,
        user="Windows" if hold.what == "windows" else holder.user if holder else None,
        age_s=holder.age_s if holder else None,
        state=hold.state,
        command=holder.command if holder else _windows_name(hold),
        note=", ".join(_notes(hold, workers)),
        parent=holder.parent if holder else None,
        group=(workload(holder.workload) or None) if holder else None,
        dead_pids=() if hold.dead_pid is None or not hold.holders else (hold.dead_pid,),
        co_holders=tuple(each.pid for each in hold.co_holders) if holder else (),
        workers=tuple(each.pid for each in workers),
        certain=hold.certain,
        job=holder.job if holder else None,
    )


def _pid(hold: Hold) -> int | None:
    return None if hold.what == "together" else hold.pid or hold.dead_pid


def _windows_name(hold: Hold) -> str | None:
    found = hold.parts[0].entry.windows if hold.what == "windows" else None
    return found.name if found else None


def _notes(hold: Hold, workers: tuple[Holder, ...]) -> Iterator[str]:
    """What a row says of its hold beside the figures."""
    holder = hold.holder
    if hold.what == "together":
        yield f"{counted(len(hold.holders), 'process')} together, how much each is unknown"
        return
    if hold.what == "ghost":
        yield _whose(hold)
        others = f"{len(hold.co_holders)} more"
        if hold.co_holders:
            yield f"held by it or {others}" if hold.one_of else f"+{others}"
    if workers:
        yield f"+{counted(len(workers), 'worker')}"
    if cached := hold.bytes_of("cached"):
        yield f"{size(cached)} cached"
    if holder and hold.parked is None and holder.executable_deleted:
        yield "its program file was deleted"
    if hold.what == "unattributed":
        yield "no holder was found"
    if hold.what == "hidden":
        first = hold.parts[0].entry
        hidden = _HIDDEN_BY.get(first.hidden_by or "", "")
        if first.cgroup is not None:
            hidden = f"of {workload(first.cgroup.workload) or first.cgroup.path}"
        if note := "Linux processes, as Windows counts them" if first.kind == "guest" else hidden:
            yield note
    if hold.parked is not None:
        yield f"{size(hold.parked.nbytes)} in host memory"
        if hold.parked.lent_to is not None:
            yield f"lent to pid {hold.parked.lent_to}"


def _whose(hold: Hold) -> str:
    if not hold.holders:
        return "dead; its holder is not known"
    likely = "" if hold.certain else "likely "
    owner = "a dead exporter" if hold.dead_pid is None else f"dead pid {hold.dead_pid}"
    return f"{likely}memory of {owner}"


def _stand_alone(ledger: Ledger, holds: Sequence[Hold]) -> Iterator[ProcessRow]:
    """A row for each process that has a GPU's files open and no row yet."""
    seen = {identity(hold.holder) for hold in holds if hold.what in ("process", "ghost")}
    for holder, state, note in _without_row(ledger, holds):
        if identity(holder) not in seen:
            seen.add(identity(holder))
            yield row_of_files(holder, state, note)


def _without_row(ledger: Ledger, holds: Sequence[Hold]) -> Iterator[tuple[Holder, State, str]]:
    for hold in holds:
        first = hold.holder
        if first is None or hold.what == "together":
            continue
        yield from ((each, "open", f"has the files of pid {first.pid}") for each in hold.workers)
        if hold.what == "ghost":
            note = f"holds the same memory as pid {first.pid}"
            yield from ((each, "ghost", note) for each in hold.co_holders)
    for opened in open_only(ledger).values():
        note = f"has the files of pid {opened.inherited_from}" if opened.inherited_from else ""
        if opened.exported_bytes:
            note = f"has a handle on {size(opened.exported_bytes)} of another process"
        yield opened.holder, "open", note


def row_of_files(holder: Holder, state: State, note: str) -> ProcessRow:
    """The row of a process that holds nothing of its own."""
    return ProcessRow(
        gpus=(),
        places=(),
        nbytes=0,
        nbytes_by_place={},
        pid=holder.pid,
        started_at=holder.started_at,
        user=holder.user,
        age_s=holder.age_s,
        state=state,
        command=holder.command,
        note=note,
        parent=holder.parent,
        group=workload(holder.workload) or None,
        job=holder.job,
    )

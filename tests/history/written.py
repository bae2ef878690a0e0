"""Histories written reading by reading: the few words that a test needs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from vram.history.questions import Questions
from vram.history.store import HistoryStore
from vram.model.gpu import GpuFacts
from vram.model.ledger import Entry, GpuLedger, Holder, Ledger
from vram.model.moment import Moment
from vram.model.observation import HostFacts, Status
from vram.units import GIB

START = 1_790_000_000.0
TOTAL = 80 * GIB
HOST = HostFacts(name="host", kernel="6.18", user="root", uid=0, initial_pid_namespace=True)


def at(seconds: float, *, clock: float = 0.0, boot_id: str = "one") -> Moment:
    """So many seconds after the start; the wall clock is wrong by *clock*."""
    return Moment(START + seconds + clock, 1000.0 + seconds, boot_id)


def process(pid: int, nbytes: int | None = GIB, *, state: str = "R", **more: Any) -> Entry:
    """Memory of a living process of user 1000."""
    return Entry(kind="process", nbytes=nbytes, holder=holder(pid, state=state, **more))


def holder(pid: int, **more: Any) -> Holder:
    values = {"started_at": pid * 10, "user": "ada", "uid": 1000, "command": f"python {pid}.py", "state": "R"}
    return Holder(pid=pid, alive=True, **(values | more))


def ghost(dead_pid: int, pid: int, nbytes: int = 2 * GIB, **more: Any) -> Entry:
    """Memory of a dead process that another one holds."""
    return Entry(kind="orphaned", nbytes=nbytes, holder=holder(pid, **more), charged_pid=dead_pid)


def ledger(
    *entries: Entry, more_gpus: Iterable[tuple[Entry, ...]] = (), status: Status = "ok", utilization: int = 50
) -> Ledger:
    """GPU 0 with *entries*, and others after it."""
    gpus = tuple(
        _gpu(index, theirs, status if index == 0 else "ok", utilization)
        for index, theirs in enumerate((entries, *more_gpus))
    )
    return Ledger(taken_at="", host=HOST, gpus=gpus)


def _gpu(index: int, entries: tuple[Entry, ...], status: Status, utilization: int) -> GpuLedger:
    used = sum(entry.nbytes or 0 for entry in entries)
    total = TOTAL if status == "ok" else None
    return GpuLedger(
        index=index,
        uuid=f"GPU-{index:08d}",
        name="NVIDIA Test",
        total_bytes=total,
        entries=(*entries, Entry(kind="free", nbytes=TOTAL - used)) if total else (),
        status=status,
        facts=GpuFacts(uuid=f"GPU-{index:08d}", name="NVIDIA Test", utilization=utilization),
    )


class Written:
    """A history in *folder* that is written to."""

    def __init__(self, folder: Path, **options: Any) -> None:
        folder.chmod(0o700)
        self.path = folder / "history.sqlite"
        self.options = {"interval_s": 10.0, **options}
        self.store = HistoryStore(str(self.path), **self.options)

    def reads(self, what: Ledger, when: Moment) -> Written:
        self.store.record(what, when)
        self.store.tend(when)
        return self

    def restarts(self, *, killed: bool = False) -> Written:
        """Another process takes over; one that was *killed* had committed, and said no word of its end."""
        if killed:
            self.store.commit()
            self.store._drop()
        else:
            self.store.close()
        self.store = HistoryStore(str(self.path), **self.options)
        self.store.open()
        return self

    def ask(self) -> Questions:
        connection = self.store.connection
        assert connection is not None
        return Questions(connection)

    def pids(self, seconds: float | None = None, gpu: str = "0") -> list[int | None]:
        """Who held memory of GPU 0 then."""
        when = None if seconds is None else START + seconds
        return sorted(each.pid or 0 for each in self.ask().holders_at(gpu, when).holders)


def example(folder: Path) -> Written:
    """Two hours: a job on two GPUs, an idle notebook, a ghost that stays, a service that was stopped once."""
    written = Written(folder)
    for number in range(720):
        if number == 300:
            written.restarts()
        if 300 <= number < 330:
            continue
        train = (
            [process(4101, (20 + number // 90) * GIB, command="python train.py --lr 3e-4")]
            if number < 500
            else []
        )
        idle = process(4102, 6 * GIB, state="S", command="python -m ipykernel", user="ben", uid=1001)
        stopped = replace(idle, holder=replace(idle.holder, state="T")) if number > 60 else idle
        left = [ghost(4100, 4103, 2 * GIB, command="python train.py --lr 1e-4")] if number > 200 else []
        written.reads(ledger(*train, *left, more_gpus=[(*train, stopped)]), at(number * 10))
    return written

"""Puts a program to sleep, and wakes it: checks, the driver's calls, and watching its files meanwhile.

Each of these takes seconds and is done in a thread, with a checkpoint worker that is kept for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from vram.children import LocalPidHandle
from vram.errors import CannotPark, NoSuchProcess, NotPermitted, Refused, TimedOut, VramError, WorldChanged
from vram.host.local import LocalHost
from vram.host.local.waits import LocalWaits, LocalWatch
from vram.host.ports import Host
from vram.model.parking import GpuShare, Parked
from vram.model.plan import Target
from vram.model.sleeping import SleepOptions, WaitFacts, WakeFile
from vram.reclaim import identity
from vram.reclaim.borrow import IDLE_WINDOW_S, idled
from vram.reclaim.parking import Parking
from vram.reclaim.preflight import DriverReport, ParkOptions, identify_parkable, read_driver
from vram.units import spell_duration

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

# A program that works on the GPU for longer than that is at work, and is tried again later.
LOCK_TIMEOUT_S = 1.0
Ignored = Mapping[tuple[int, int], int]
"""What each process had left unread: bytes or connections, by pid and descriptor."""


class Works(Refused):
    """The program is at work, or something has just arrived for it: it is not put to sleep."""


class Asleep:
    """A program that is asleep: what lies where, and the files by which it is wanted."""

    def __init__(self, entries: Sequence[Parked], ignored: Ignored) -> None:
        self.entries = tuple(entries)
        self.ignored = ignored
        self.watches: list[LocalWatch] = []

    def watch(self, handles: Sequence[LocalPidHandle], options: SleepOptions) -> None:
        """Begin to watch the files of its processes, which are stopped. Raises OSError."""
        for handle in handles:
            ignored = {fd: count for (pid, fd), count in self.ignored.items() if pid == handle.pid}
            self.watches.append(LocalWaits().watch(handle, options.ports, ignored))

    def wanted(self, *, all_files: bool = False) -> WakeFile | None:
        return next(filter(None, (each.wanted(all_files=all_files) for each in self.watches)), None)

    def close(self) -> None:
        """Give up the copies of its files."""
        for each in self.watches:
            each.close()
        self.watches.clear()


# ---- before: may it sleep, and would anything wake it? ----


def read_waits(pids: Sequence[int]) -> tuple[WaitFacts, ...]:
    """By what each of *pids* is wanted. Raises NoSuchProcess."""
    found = []
    for pid in pids:
        with open_process(pid) as handle:
            found.append(LocalWaits().read(handle))
    return tuple(found)


def open_process(pid: int, started_at: int | None = None) -> LocalPidHandle:
    """The process that has *pid*, if it was started then. Raises NoSuchProcess, WorldChanged."""
    host = LocalHost()
    handle = host.signals.open(pid)
    if handle is None:
        raise NoSuchProcess(f"there is no process {pid}", hint="`vram who` lists those that hold GPU memory")
    now = host.proc.started_at(pid)
    if started_at is not None and now != started_at:
        handle.close()
        if now is None:
            raise NoSuchProcess(f"process {pid} has exited")
        raise WorldChanged(
            f"pid {pid} is a different process now: it was started later", hint="see `vram who`"
        )
    return handle


def require_may_sleep(waits: Sequence[WaitFacts], *, anyway: bool = False) -> None:
    """Raise where one of these must not be stopped for long, or could not be seen to be wanted."""
    for each in waits:
        if each.files is None:
            kind = NotPermitted if "permission" in each.denied else CannotPark
            raise kind(
                f"vram could not see when pid {each.pid} is wanted: {each.denied}",
                hint=f"`vram park {each.pid}` parks it until `vram unpark {each.pid}`",
            )
        if each.watchdog_s is not None and not anyway:
            raise CannotPark(
                f"systemd ends pid {each.pid} unless it gives a sign of life every"
                f" {spell_duration(each.watchdog_s)} (WatchdogSec), which it cannot do while it sleeps",
                hint="remove WatchdogSec from its unit; --anyway puts it to sleep nevertheless",
            )


def observe(host: Host, handles: Sequence[LocalPidHandle], *, anyway: bool = False) -> Ignored:
    """Return what these processes leave unread, over a quarter of a second: that is no request.

    Raises Works where one of them uses a processor, or where something has arrived meanwhile; not with
    *anyway*.
    """
    pids = [handle.pid for handle in handles]
    before, earlier = _limits(host, pids), _unread(handles)
    began = host.clock.monotonic()
    host.clock.sleep(IDLE_WINDOW_S)
    window_s = host.clock.monotonic() - began
    after, now = _limits(host, pids), _unread(handles)
    left = {key: count for key, count in now.items() if earlier.get(key) == count}
    if anyway:
        return left
    for pid in pids:
        if not idled(before[pid], after[pid], window_s):
            raise Works(f"pid {pid} works", hint="--anyway puts it to sleep nevertheless")
    fresh = next((pid for pid, fd in now if (pid, fd) not in left), None)
    if fresh is not None:
        raise Works(f"something has just arrived for pid {fresh}", hint="try again in a moment")
    return left


def require_resting_gpus(report: DriverReport, pids: Sequence[int]) -> None:
    """Raise Works where a GPU of theirs works: a program may wait for its own kernels and use no processor.

    Asleep, nothing would wake it to go on. The driver does not say for which program a GPU works.
    """
    for pid in pids:
        for share in report.shares(pid):
            gpu = report.gpus.get(share.gpu)
            if gpu is not None and gpu.utilization:
                raise Works(
                    f"GPU {share.gpu} works, for pid {pid} or for another program",
                    hint="--anyway puts it to sleep nevertheless",
                )


def _limits(host: Host, pids: Sequence[int]) -> dict[int, Any]:
    return {pid: host.limits.read(pid) for pid in pids}


def _unread(handles: Sequence[LocalPidHandle]) -> dict[tuple[int, int], int]:
    waits = [LocalWaits().read(handle) for handle in handles]
    return {(file.pid, file.fd): file.unread for each in waits for file in each.files or () if file.unread}


# ---- the moves ----


def put_to_sleep(
    parking: Parking,
    targets: Sequence[Target],
    handles: Sequence[LocalPidHandle],
    options: SleepOptions,
    *,
    anyway: bool = False,
) -> Asleep:
    """Move the memory of all these processes to the host, stop them, and begin to watch their files.

    Raises why they stay awake: Works, or a refusal. With *anyway* also while they work.
    """
    host = LocalHost()
    pids = [target.process.pid for target in targets]
    waits = [LocalWaits().read(each) for each in handles]
    require_may_sleep(waits, anyway=anyway)
    ignored = observe(host, handles, anyway=anyway)
    report = read_driver(host)
    if not anyway:
        require_resting_gpus(report, pids)
    orders: list[tuple[Target, tuple[GpuShare, ...]]] = []
    for target in targets:
        taken = sum(share.nbytes for _, shares in orders for share in shares)
        park = ParkOptions(taken_before=taken, together=len(targets), anyway=anyway)
        now, shares = identify_parkable(host, report, target.process.pid, park)
        if now.process != target.process:
            raise WorldChanged(f"pid {now.process.pid} is a different process now", hint="see `vram who`")
        orders.append((now, shares))
    try:
        moved = parking.park_together(orders, purpose="sleep", lock_timeout_s=LOCK_TIMEOUT_S)
    except TimedOut as error:
        raise Works(str(error), hint=error.hint) from error
    asleep = Asleep([each.entry for each in moved], ignored)
    try:
        asleep.watch(handles, options)
    except OSError as error:
        asleep.close()
        wake(parking, asleep.entries)
        raise CannotPark(
            f"vram could not see when pid {pids[0]} is wanted: {error.strerror}; it is awake",
            hint="see `ulimit -Hn`",
        ) from error
    return asleep


def wake(
    parking: Parking, entries: Sequence[Parked], let_off: Callable[[int], None] = lambda pid: None
) -> None:
    """Bring all these processes back and let them run. Raises why they sleep on: NoRoom where a GPU is full.

    The first one is brought back only where there is room for all of them. *let_off* is called for each pid
    when its memory is back: its threads may run from then on.
    """
    for at, entry in enumerate(entries):
        room = _together(entries) if at == 0 else entry.shares
        try:
            pid = entry.target.process.pid
            parking.unpark(replace(entry, shares=room), on_restored=partial(let_off, pid))
        except NoSuchProcess:
            continue
        except CannotPark:
            if not is_awake(parking, entry):
                raise


def is_awake(parking: Parking, entry: Parked) -> bool:
    """Whether it runs after all: another vram may have brought it back."""
    with suppress(VramError):
        return parking.worker.state(entry.target.process.pid, 5.0).state == "running"
    return False


def _together(entries: Sequence[Parked]) -> tuple[GpuShare, ...]:
    sums: dict[tuple[int, str], int] = {}
    for entry in entries:
        for share in entry.shares:
            sums[share.gpu, share.uuid] = sums.get((share.gpu, share.uuid), 0) + share.nbytes
    return tuple(GpuShare(gpu, uuid, nbytes) for (gpu, uuid), nbytes in sums.items())


def identify(pid: int) -> Target:
    """The process that has *pid*, described so well that no later one can be taken for it."""
    return identity.identify(LocalHost(), pid)


# ---- threads that move ----


class Lane:
    """A thread with a checkpoint worker of its own, which is ready before it is needed: the driver takes a
    second to start. ``busy`` counts what is under way or waits."""

    def __init__(self) -> None:
        self.busy = 0
        self._jobs: SimpleQueue[tuple[Callable[[Parking], Any], Future[Any]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[Parking], Any]) -> Future[Any]:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        self.busy += 1
        self._jobs.put((job, future))
        return future

    def close(self, wait_s: float) -> None:
        """End it when what it does is done; its checkpoint worker ends too."""
        self._jobs.put(None)
        self._thread.join(wait_s)

    def _work(self) -> None:
        with Parking(LocalHost()) as parking:
            while (order := self._jobs.get()) is not None:
                job, future = order
                try:
                    future.set_result(job(parking))
                except BaseException as error:
                    if isinstance(error, TimedOut):
                        parking.end_worker()  # it may hang in the driver: the next move has a new one
                    future.set_exception(error)
                finally:
                    self.busy -= 1


class Lanes:
    """Threads for moves. One that waits for the driver keeps no other program from being woken."""

    MAX = 4

    def __init__(self) -> None:
        self._lanes: list[Lane] = []

    def submit(self, job: Callable[[Parking], Any]) -> Future[Any]:
        """Do *job* in the lane that has the least to do, or in a new one."""
        lane = min(self._lanes, key=lambda each: each.busy, default=None)
        if lane is None or (lane.busy and len(self._lanes) < self.MAX):
            lane = Lane()
            self._lanes.append(lane)
        return lane.submit(job)

    def warm_up(self) -> None:
        """Have one lane more than is busy, with its checkpoint worker started."""
        if all(each.busy for each in self._lanes) and len(self._lanes) < self.MAX:
            lane = Lane()
            self._lanes.append(lane)
            lane.submit(lambda parking: parking.worker)

    def close(self, wait_s: float = 5.0) -> None:
        for each in self._lanes:
            each.close(wait_s)
        self._lanes.clear()

"""The service: one event loop in one thread that asks for a reading at an interval and hands it to its parts.

It never touches the driver: a reading process does (:mod:`vram.live_reader`), which is killed and started
anew where it does not answer. Requests are answered from the last reading, whatever the driver does then.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from vram import folders
from vram.errors import AlreadyRunning, ConfigError, VramError
from vram.live_reader import LiveReading, ReaderClient, ReaderOptions, release_heap
from vram.model.moment import Moment, rfc3339
from vram.serve.config import Places, ServeConfig
from vram.serve.part import GuardedPart, Health, PartHealth, ServicePart, worst
from vram.serve.state import Reading, ServiceState
from vram.serve.systemd import ServiceLog, SystemdNotifier

CONFIRM_S = 1.0
"""What was there in one reading only is confirmed by another, this much later."""
MAX_SHARE = 0.1
"""Of one core, for readings, whatever they meet: where each has to read everything, they come less often."""
MAX_STRETCH_S = 30.0
"""A reading comes at most this much later than configured; stale_after_s counts with it."""
LATE_S = 15.0
"""Readings that come more seldom than this, and than every second interval, are late."""
PART_S = 20.0
"""A part that takes longer with a reading is interrupted; it must not hold the others up."""
CLOSE_S = 5.0
COLLECT_AFTER = 100
"""Readings between two full collections; Python's own come too seldom in a process that runs for weeks."""
_LOCK = "serve.lock"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class ReadingPort(Protocol):
    """Where readings come from: the reading process, or what a test has in its place."""

    @property
    def launches(self) -> int: ...
    @property
    def waiting_s(self) -> float: ...
    def listen(self, on_reading: Callable[[LiveReading], None]) -> None: ...
    def ask(self, whole: bool = False) -> bool: ...
    def abandon(self) -> None: ...
    def close(self) -> None: ...


class ServiceClock(Protocol):
    """What the service knows of time."""

    def now(self) -> Moment: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """This machine's clocks."""

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    def now(self) -> Moment:
        return Moment(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self._boot_id)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _read_boot_id() -> str:
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read(64).strip()
    except (OSError, ValueError):
        return ""


class Service:
    """Everything that runs in the service's process; parts and routes get it whole."""

    def __init__(
        self,
        config: ServeConfig,
        places: Places,
        *,
        reader: ReaderOptions | None = None,
        source: ReadingPort | None = None,
        clock: ServiceClock | None = None,
        load: Callable[[], ServeConfig] | None = None,
    ) -> None:
        self.config = config
        self.places = places
        self.clock = clock or SystemClock()
        self.log = ServiceLog()
        self.state = ServiceState(self.clock.now())
        self.reader_options = reader or ReaderOptions()
        self.source: ReadingPort = source or ReaderClient(self.reader_options)
        self.parts: tuple[GuardedPart, ...] = ()
        self.answers: dict[str, tuple[Reading | None, bytes]] = {}
        """What routes have made of a reading, by a name of theirs; forgotten with the next one."""
        self.reloaded_well = True
        self.reloaded_at: Moment = self.state.started
        self._load = load or (lambda: config)
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._arrived: asyncio.Future[LiveReading] | None = None
        self._folder: StateFolder | None = None
        self._notifier = SystemdNotifier()
        self._reloads: set[asyncio.Future[bool]] = set()  # the loop itself keeps no task alive
        self._one_reload = asyncio.Lock()
        self._last_error: str | None = None

    # ---- what parts and routes ask ----

    @property
    def is_ready(self) -> bool:
        """Whether a reading has been taken, so that there is something to answer with."""
        return self.state.good is not None

    @property
    def most_reading_s(self) -> float:
        """After so long the reading process is killed: it has its own, shorter deadlines."""
        return 3 * self.reader_options.deadline_s + 5.0

    @property
    def stale_after_s(self) -> float:
        """From which age on the last good reading means that the service does not work."""
        return self.longest_pause_s + MAX_STRETCH_S

    @property
    def longest_pause_s(self) -> float:
        """How long two readings may lie apart to count as one after the other."""
        return 3 * self.config.interval_s + 2 * self.most_reading_s

    def age_of(self, reading: Reading | None) -> float | None:
        return None if reading is None else self.clock.now().since(reading.moment)

    def health(self) -> tuple[Health, tuple[tuple[str, PartHealth], ...]]:
        """How the whole is, and each part by its name."""
        parts = (("reading", self._reading_health()), *((each.name, each.health()) for each in self.parts))
        return worst(each.status for _, each in parts), parts

    def _reading_health(self) -> PartHealth:
        age_s, last = self.age_of(self.state.good), self.state.last
        if age_s is None:
            waited_s = self.clock.now().since(self.state.started)
            return PartHealth(
                "failed" if waited_s > self.stale_after_s else "degraded", "nothing was read yet"
            )
        if age_s > self.stale_after_s:
            return PartHealth("failed", f"the last good reading is {age_s:.0f} s old")
        if last is not None and last.error is not None:
            return PartHealth("degraded", last.error)
        if last is not None and (every_s := self._every_s(last)) > max(2 * self.config.interval_s, LATE_S):
            message = f"readings come every {every_s:.0f} s, not every {self.config.interval_s:g} s"
            return PartHealth("degraded", f"{message}: each takes {last.took_s:.1f} s")
        if not self.reloaded_well:
            return PartHealth("degraded", "the configuration file is wrong; the one before is in use")
        return PartHealth()

    def part(self, name: str) -> ServicePart | None:
        return next((each.part for each in self.parts if each.name == name), None)

    def read_soon(self) -> None:
        """Have the next reading now: an action has changed the memory."""
        self._hurry.set()

    # ---- its life ----

    async def run(self, for_s: float | None = None) -> None:
        """Run until a signal, or for *for_s* seconds. Raises VramError where it cannot start."""
        from vram.serve.parts import PARTS

        self._folder = StateFolder(self.places.state)
        try:
            self.parts = tuple(GuardedPart(make(self), self.log) for make in PARTS)
            try:
                await self._start()
                await self._until_stopped(for_s)
            finally:
                await self._close()
        finally:
            self._folder.close()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self.reload_soon)
        loop.set_exception_handler(self._on_loop_error)
        self.source.listen(self._on_reading)
        for part in self.parts:
            await part.part.start()
        self._notifier.ready("reading every " + self.config.interval)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A task failed that is not awaited: a line, and no traceback for each."""
        error = context.get("exception")
        self.log.error(f"{context.get('message', '')}: {type(error).__name__}: {error}")

    def stop(self) -> None:
        """End after what is being done now."""
        self._stop.set()
        self._hurry.set()

    async def _until_stopped(self, for_s: float | None) -> None:
        """Wait for the end; a loop that has failed ends the service, so that systemd starts it again."""
        jobs = [asyncio.create_task(self._read_on()), asyncio.create_task(self._stop.wait())]
        if self._notifier.watchdog_s is not None:
            jobs.append(asyncio.create_task(self._watchdog(self._notifier.watchdog_s)))
        try:
            done, _ = await asyncio.wait(jobs, timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                job.result()
        finally:
            self.stop()
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _close(self) -> None:
        self._notifier.stopping()
        for part in reversed(self.parts):
            await part.call(part.part.close(), CLOSE_S)
        self.source.close()

    async def _watchdog(self, every_s: float) -> None:
        while True:
            self._notifier.alive()
            await asyncio.sleep(every_s)

    # ---- readings ----

    async def _read_on(self) -> None:
        readings = 0
        while not self._stop.is_set():
            began = self.clock.now()
            self._hurry.clear()
            found = await self._read()
            reading = self.state.take(found, self.clock.now())
            self.answers.clear()
            self._log_error(found.error)
            cpu_s, changed = found.cpu_s, found.ledger is not None
            del found
            for part in self.parts:
                await part.call(part.part.on_reading(reading), PART_S)
            if changed:
                release_heap()
            readings += 1
            if readings == 1:
                gc.collect()
                gc.freeze()  # all that is imported stays: it need not be looked at again
            elif readings % COLLECT_AFTER == 0:
                gc.collect()
            await self._pause(self.clock.now().since(began), cpu_s)

    def _log_error(self, error: str | None) -> None:
        """Say it once where readings begin to fail, and where they work again."""
        if error is not None and error != self._last_error:
            self.log.error(f"reading: {error}")
        elif error is None and self._last_error is not None:
            self.log.info("reading: works again")
        self._last_error = error

    async def _read(self) -> LiveReading:
        """One reading; a reading process that does not answer is given up."""
        arrived: asyncio.Future[LiveReading] = asyncio.get_running_loop().create_future()
        self._arrived = arrived
        self.source.ask()
        try:
            await asyncio.wait((arrived,), timeout=self.most_reading_s)
            if arrived.done():
                return arrived.result()
            self.source.abandon()
            message = f"no reading within {self.most_reading_s:.0f} s; the reading process is started again"
            return LiveReading(taken_at=rfc3339(time.time()), took_s=0.0, error=message)
        finally:
            self._arrived = None
            self.state.reader_restarts = max(0, self.source.launches - 1)

    def _on_reading(self, found: LiveReading) -> None:
        if self._arrived is not None and not self._arrived.done():
            self._arrived.set_result(found)

    def _every_s(self, reading: Reading) -> float:
        """How long after the begin of *reading* the next one begins, if no part wants it sooner."""
        return reading.took_s + self._pause_s(reading.took_s, reading.cpu_s)

    def _pause_s(self, took_s: float, cpu_s: float) -> float:
        interval_s = self.config.interval_s
        if self.state.needs_confirmation:
            interval_s = min(interval_s, CONFIRM_S)
        stretch_s = min(cpu_s / MAX_SHARE, MAX_STRETCH_S)
        return max(interval_s - took_s, stretch_s, 0.05)

    async def _pause(self, took_s: float, cpu_s: float) -> None:
        """Wait for the rest of the interval, or until a part wants a reading."""
        sleep = asyncio.ensure_future(self.clock.sleep(self._pause_s(took_s, cpu_s)))
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait((sleep, hurry), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleep.cancel()
            hurry.cancel()

    # ---- another configuration ----

    def reload_soon(self) -> None:
        """Read the configuration again; a wrong one is reported, and the one before stays."""
        reload = asyncio.ensure_future(self.reload())
        self._reloads.add(reload)
        reload.add_done_callback(self._reloads.discard)

    async def reload(self) -> bool:
        async with self._one_reload:
            return await self._reload()

    async def _reload(self) -> bool:
        self._notifier.reloading()
        try:
            config = self._load()
        except VramError as error:
            self.reloaded_well = False
            self.log.error(f"the configuration stays as it was: {error}")
        else:
            self.config, self.reloaded_well, self.reloaded_at = config, True, self.clock.now()
            self.answers.clear()  # others may see other things now
            for part in self.parts:
                await part.call(part.part.reload(config), PART_S)
            self.log.info("the configuration was read again")
        self._notifier.ready("reading every " + self.config.interval)
        return self.reloaded_well


class StateFolder:
    """The private folder of one service, locked: the kernel releases it, however the service ends.

    ``descriptor`` leads to it whatever its path means later.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = folders.open_private(path, make=True)
        except OSError as error:
            hint = "make it a folder that only you can access (mode 0700), or choose another with --state"
            raise ConfigError(f"cannot use the state folder {path}: {error.strerror}", hint=hint) from error
        try:
            self._lock = self._take()
        except BaseException:
            os.close(self.descriptor)
            raise

    def _take(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            lock = os.open(_LOCK, flags, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            raise ConfigError(
                f"cannot write to the state folder {self.path}: {error.strerror}",
                hint="choose another with --state",
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(lock).st_mode):
                raise ConfigError(f"{self.path}/{_LOCK} is not a plain file", hint="remove it")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            who = f" (pid {pid})" if pid.isdecimal() else ""
            raise AlreadyRunning(
                f"another vram serve{who} uses the state folder {self.path}",
                hint="one service a machine is enough; `vram serve --state` gives another one its own folder",
            ) from error
        except BaseException:
            os.close(lock)
            raise
        with suppress(OSError):  # a full disk: the lock is held all the same
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        return lock

    def close(self) -> None:
        os.close(self._lock)
        os.close(self.descriptor)

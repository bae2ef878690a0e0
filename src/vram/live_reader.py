"""The process that reads the host for ``vram top`` and ``vram serve``: started once, asked again and again.

A process of its own has one thread, so that it may fork; and a driver that hangs in it leaves the view alive.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from vram.children import Child, Inbox, interpreter, send, spawn
from vram.model.finding import Finding
from vram.model.ledger import Ledger
from vram.model.process import ParkedProcess

# Each end imports what it needs where it needs it: the view no probes, the reading process no event loop.
if TYPE_CHECKING:
    import asyncio

    from vram.host.ports import Host

COLLECT_AFTER = 100
"""Readings between two full collections; Python's own come too seldom in a process that runs for weeks."""
WINDOWS_EVERY_S = 15.0  # each question starts a PowerShell
READ, READ_WHOLE = b"r", b"w"
_GRACE_S = 0.5
_MAX_ABANDONED = 3  # that hang in the kernel: the next one would hang there too


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the host is, and how long its driver may take to answer."""

    proc_root: str = "/proc"
    sys_root: str | None = None
    ask_windows: bool = True
    deadline_s: float = 5.0
    whole_share: float | None = None
    """Most of one core that may go into reading everything again while no process comes or goes."""
    measure_cpu: bool = False
    """Whether each reading says how much of a core the holders have used since the one before."""


class LiveReading(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading found. ``ledger`` is None where nothing has changed but the time, or with an error.

    Ages of processes in ``ledger`` were true ``ages_behind_s`` before this reading.
    """

    taken_at: str
    took_s: float
    cpu_s: float = 0.0
    ages_behind_s: float = 0.0
    ledger: Ledger | None = None
    findings: tuple[Finding, ...] = ()
    error: str | None = None
    cpu_percent: dict[int, int] = {}
    """By pid, how much of one core a holder has used since the last reading; nothing after the first one."""


# ---- in that process ----


class CpuUse:
    """How much of one core processes use between two readings, from what the kernel has counted for each."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before: dict[tuple[int, int], float] = {}
        self._read_at = 0.0

    def since_last(self, pids: Collection[int]) -> dict[int, int]:
        """The percentages of those of *pids* that were here the last time, too; a reused pid was not."""
        now = self._host.clock.monotonic()
        elapsed_s, self._read_at = now - self._read_at, now
        conditions = {pid: self._host.proc.condition(pid) for pid in pids}
        used = {(pid, each.started_at): each.cpu_s for pid, each in conditions.items() if each is not None}
        before, self._before = self._before, used
        return {
            process[0]: round(100 * (cpu_s - before[process]) / elapsed_s)
            for process, cpu_s in used.items()
            if process in before and elapsed_s > 0
        }


class HostReader:
    """Reads one host, and judges what has changed."""

    def __init__(self, options: ReaderOptions, driver_reader: Child | None = None) -> None:
        from vram.host.local import LocalHost
        from vram.probes.repeated import RepeatedSurvey

        self._host = LocalHost(
            options.proc_root,
            sys_root=options.sys_root,
            ask_windows=options.ask_windows,
            windows_every_s=WINDOWS_EVERY_S,
            keep_driver_open=True,
            kept_reader=driver_reader,
        )
        self._surveys = RepeatedSurvey(self._host, options.deadline_s, whole_share=options.whole_share)
        self._cpu_use = CpuUse(self._host) if options.measure_cpu else None
        self._holders: frozenset[int] = frozenset()
        # A survey's number, and which processes are parked.
        self._last: tuple[int, tuple[ParkedProcess, ...]] | None = None

    def read(self, whole: bool) -> LiveReading:
        """Read the host; never raises for what it meets there."""
        began, used, taken_at = time.monotonic(), time.process_time(), self._host.clock.now()
        try:
            found = self._judge_changes(whole)
        except Exception as error:
            self._last = None
            found = LiveReading(taken_at="", took_s=0.0, error=f"{type(error).__name__}: {error}")
        return replace(
            found,
            taken_at=taken_at,
            took_s=time.monotonic() - began,
            cpu_s=time.process_time() - used,
            ages_behind_s=self._surveys.behind_s,
            cpu_percent=self._cpu_use.since_last(self._holders) if self._cpu_use is not None else {},
        )

    def _judge_changes(self, whole: bool) -> LiveReading:
        """The ledger of now, judged; without one where it is that of the last time."""
        from vram.diagnosis.engine import diagnose
        from vram.ledger.build import build_ledger
        from vram.ledger.holds import find_holds
        from vram.reclaim.state import parked

        survey = self._surveys.read_whole() if whole else self._surveys.read()
        now = (self._surveys.number, parked(self._host))
        if self._last == now:
            return LiveReading(taken_at="", took_s=0.0)
        ledger = build_ledger(replace(survey, parked=now[1]))
        findings = diagnose(ledger)
        self._last = now
        self._holders = frozenset(
            holder.pid for hold in find_holds(ledger, empty=True) for holder in hold.holders
        )
        return LiveReading(taken_at="", took_s=0.0, ledger=ledger, findings=findings)

    def close(self) -> None:
        self._host.nvml.close()


def serve(driver_reader: Child | None) -> None:
    """Answer until the view ends: descriptor 3 leads to it, the program's argument is its options."""
    reader = HostReader(msgspec.json.decode(sys.argv[1], type=ReaderOptions), driver_reader)
    encoder = msgspec.msgpack.Encoder()
    readings = 0
    try:
        while request := os.read(3, 1):
            reading = reader.read(request == READ_WHOLE)
            send(3, encoder.encode(reading))
            if reading.ledger is not None:
                del reading
                release_heap()
            readings += 1
            if readings == 1:
                gc.freeze()  # all that is imported stays: it need not be looked at again
            elif readings % COLLECT_AFTER == 0:
                gc.collect()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the view has ended
    finally:
        reader.close()


def release_heap() -> None:
    """Return what was needed for a moment to the kernel: on a large machine some megabytes."""
    import ctypes

    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


# ---- in the view ----


class ReaderClient:
    """Asks the reading process, for one reading at a time; starts it again where it has ended."""

    def __init__(self, options: ReaderOptions) -> None:
        self._command = interpreter("vram.reading_process", msgspec.json.encode(options).decode())
        self._decode = msgspec.msgpack.Decoder(LiveReading).decode
        self._child: Child | None = None
        self._inbox = Inbox(self._decode)
        self._asked_at: float | None = None
        self._abandoned: list[Child] = []
        self.launches = 0
        """How often the process was started."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_reading: Callable[[LiveReading], None] | None = None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    @property
    def waiting_s(self) -> float:
        """How long the reading under way has taken; zero where none is."""
        return 0.0 if self._asked_at is None else time.monotonic() - self._asked_at

    def launch(self) -> None:
        """Start the process and its first reading: it can go on while the view is still being made."""
        self._child = spawn(self._command, link="stream")
        self.launches += 1
        self._inbox, self._asked_at = Inbox(self._decode), None
        self.ask()

    def listen(self, on_reading: Callable[[LiveReading], None]) -> None:
        """Call *on_reading* with every answer from now on, in the running event loop."""
        from asyncio import get_running_loop

        self._loop, self._on_reading = get_running_loop(), on_reading
        if self._child is not None:
            self._loop.add_reader(self._child.pipe, self._receive)

    def ask(self, whole: bool = False) -> bool:
        """Ask for a reading; False where one is under way. A process that has ended is started anew."""
        if self._asked_at is not None:
            return False
        if self._abandoned:
            self._abandoned = [each for each in self._abandoned if not each.end(0.0)]
        if self._child is None:
            if len(self._abandoned) >= _MAX_ABANDONED:
                self._hand_on(
                    _failed("reading processes hang in the kernel and cannot be ended; none is started")
                )
                return False
            try:
                self.launch()
            except OSError as error:
                self._hand_on(_failed(f"the reading process could not be started: {error.strerror}"))
                return False
            if self._loop is not None and self._child is not None:
                self._loop.add_reader(self._child.pipe, self._receive)
            return True
        self._asked_at = time.monotonic()
        with suppress(OSError):  # it has ended, which _receive meets
            os.write(self._child.pipe, READ_WHOLE if whole else READ)
        return True

    def _receive(self) -> None:
        assert self._child is not None
        readings: list[LiveReading] = []
        try:
            part = os.read(self._child.pipe, 1 << 20)
            readings += self._inbox.add(part)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # it was killed, or wrote no frame
            part = b""
        if not part:
            self.abandon()
            self._hand_on(_failed("the reading process has ended; it is started again"))
            return
        for reading in readings:
            self._asked_at = None
            self._hand_on(reading)

    def _hand_on(self, reading: LiveReading) -> None:
        if self._on_reading is not None:
            self._on_reading(reading)

    def abandon(self) -> None:
        """Kill a process that does not answer, without waiting for its end; the next question starts another.

        One that hangs in the kernel cannot end yet: it is collected later.
        """
        child = self._hang_up()
        if child is not None:
            self._abandoned.append(child)
        self._abandoned = [each for each in self._abandoned if not each.end(0.0)]

    def _hang_up(self) -> Child | None:
        child, self._child, self._asked_at = self._child, None, None
        if child is not None:
            if self._loop is not None:
                self._loop.remove_reader(child.pipe)
            child.hang_up()
        return child

    def close(self) -> None:
        """End the process; one that hangs in the kernel is left behind, and ends when it wakes up."""
        child = self._hang_up()
        if child is not None and not child.wait(_GRACE_S):
            child.end(_GRACE_S)
        for each in self._abandoned:
            each.end(0.0)


def _failed(message: str) -> LiveReading:
    taken_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return LiveReading(taken_at=taken_at, took_s=0.0, error=message)

"""Inject a few lines of source into a CPython with ptrace, without a debugger.

Every thread is stopped for about a millisecond, while the lines are written where nothing else writes, and
the main thread is made to run them by one of three routes (see :mod:`vram.reach.execution`). The lines start
a thread for the payload and return at once. Until they ran, the injection is retried or withdrawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from vram.model.inside import Via
from vram.payloads.procfs import MapLine
from vram.reach import elf
from vram.reach.attachment import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    attach,
    once_it_is_safe,
    require_same_process,
    verify_identity,
    why_unavailable,
)
from vram.reach.cpython import RemotePython
from vram.reach.elf import ElfImage
from vram.reach.execution import ExecutionRoutes, Route
from vram.reach.machines import this_machine
from vram.reach.payload import PayloadRequest, RawAnswer
from vram.reach.ptrace import StoppedThreads, TargetMemory, UnsafeToAttach, while_stopped
from vram.reach.script_drop import ScriptDrop
from vram.reach.target_process import TargetProcess
from vram.reach.waits import thread_record_nbytes

# Runs last in the thread that the lines start: it clears them, so that the next run finds the place free.
_AFTERWARDS = """\
try:
 with open("/proc/self/mem","r+b",0) as f:f.seek({address});f.write(bytes({nbytes}))
except BaseException:pass
"""
# fmt: off
_SMALL_LIBRARIES = (
    "libm", "libpthread", "libdl", "librt", "libutil", "liblzma", "libz", "libbz2", "libexpat", "libffi",
    "libcrypt",
)
# fmt: on
_ALIGNMENT = 64
# How long after the deadline a call is tried to be withdrawn: others may be at the process just then.
_WITHDRAW_S = 2.0


def inject_and_wait(injection: Injection, drop: ScriptDrop, pidfd: int, until: float) -> RawAnswer:
    """Inject, wait for the answer; cancelled, neither call nor text stays. Raises UnsafeToAttach."""
    injection.inject(drop, until)
    pause_s = FIRST_PAUSE_S
    try:
        while not drop.wait(pidfd, min(until, time.monotonic() + pause_s)):
            if time.monotonic() >= until:
                raise drop.timed_out()
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            with suppress(UnsafeToAttach):
                injection.retry()
    except BaseException:
        drop.cancel()
        with suppress(UnsafeToAttach):
            injection.withdraw()
        raise
    return RawAnswer(drop.answer(pidfd), injection.stopped_s)


class Injection:
    """One process, one text: injected, retried, withdrawn."""

    def __init__(self, process: TargetProcess, memory: TargetMemory) -> None:
        self._process, self._pid, self._memory = process, process.pid, memory
        self._about = verify_identity(process)
        maps = elf.mappings(self._pid)
        found = list(elf.images(memory, maps))
        program = next((each for each in found if each.path == self._about[1]), None)
        if program is None:
            raise UnsafeToAttach(
                f"it is not a program for {this_machine().name}",
                "run one that is, or have it call vram.agent()",
            )
        self.python = RemotePython(memory, elf.python_image(program, found), process.minor, maps)
        self._routes = ExecutionRoutes(memory, self.python, program, found, maps)
        self._record_nbytes = thread_record_nbytes(memory, found)
        self._tails = list(_tails(program, found, maps))
        self._texts: dict[int, bytes] = {}
        self._place: int | None = None
        self.route: Route | None = None
        self.stopped_s = 0.0

    def inject(self, drop: ScriptDrop, until: float) -> None:
        """Stop the process, have it run the drop's lines soon, resume it."""
        nbytes = len(self._text(drop, 0)) + _ALIGNMENT
        if all(ends - begins < nbytes for begins, ends in self._tails):
            raise UnsafeToAttach("it has no room for a few lines of code", "have it call vram.agent()")

        def attempt() -> None:
            self._texts = {place: self._text(drop, place) for place in self._places(nbytes)}
            if not self._texts:
                raise _no_free_place()
            self._prepare()
            self.route = self._while_stopped(self._inject_while_stopped)

        once_it_is_safe(attempt, until)

    def retry(self) -> None:
        """It has not answered yet. Where its call is still pending, take the route that is possible now."""
        if self.route == "signal-frame" or self._place is None:
            return
        if not self.python.probably_has_pending_call(self._place):
            self.route = "signal-frame"  # it was taken from the ring and runs: there is nothing to retry
            return
        self._prepare()
        self.route = self._while_stopped(self._retry_while_stopped)

    def withdraw(self) -> None:
        """The run is cancelled: remove call and text, where they are still there."""
        if self._place is not None:
            until = time.monotonic() + _WITHDRAW_S
            once_it_is_safe(lambda: self._while_stopped(self._withdraw_while_stopped), until)

    def _prepare(self) -> None:
        """Read everything that need not be read during the stop."""
        self._routes.prepare(self._pid)
        with suppress(UnsafeToAttach):
            self.python.require_usable()
            self.python.find_main_thread()

    def _while_stopped(self, action: Callable[[StoppedThreads], Route | None]) -> Route | None:
        route, stopped_s = while_stopped(self._pid, action)
        self.stopped_s += stopped_s
        return route

    def _inject_while_stopped(self, threads: StoppedThreads) -> Route:
        tid, registers = self._main_thread(threads)
        place = next((each for each in self._texts if self._is_free(each)), None)
        if place is None:
            raise _no_free_place()
        route = self._routes.choose(threads, tid, registers)
        self._memory.write(place, self._texts[place])
        self._place = place
        self._trigger(route, threads, tid, registers, place)
        return route

    def _trigger(
        self, route: Route, threads: StoppedThreads, tid: int, registers: dict[str, int], place: int
    ) -> None:
        if route == "signal-frame":
            self._routes.run_by_signal_frame(threads, tid, registers, place)
            return
        self.python.add_pending_call(place)
        if route == "interrupted-wait":
            self._routes.interrupt_wait(threads, tid, registers)

    def _retry_while_stopped(self, threads: StoppedThreads) -> Route:
        assert self._place is not None
        tid, registers = self._main_thread(threads)
        if not self.python.has_pending_call(self._place):
            return "signal-frame"  # it was taken from the ring and runs: there is nothing to retry
        route = self._routes.choose(threads, tid, registers)
        if route == "signal-frame":
            if not self.python.remove_pending_call(self._place):
                return "pending-call"
            self._routes.run_by_signal_frame(threads, tid, registers, self._place)
            return route
        self.python.request_pending_calls()
        if route == "interrupted-wait":
            self._routes.interrupt_wait(threads, tid, registers)
        return route

    def _withdraw_while_stopped(self, threads: StoppedThreads) -> None:
        assert self._place is not None
        self._main_thread(threads)
        text = self._texts[self._place]
        if not self.python.has_pending_call(self._place) or self._memory.read(self._place, len(text)) != text:
            return
        if not self.python.remove_pending_call(self._place):
            self.python.empty_pending_call(self._place)
        # Last: as long as a call leads there, the place must not be free for others.
        self._memory.write(self._place, bytes(len(text)))

    def _main_thread(self, threads: StoppedThreads) -> tuple[int, dict[str, int]]:
        """The id and registers of Python's main thread; raises where the process is not the one expected."""
        require_same_process(self._pid, self._about)
        # The same program once more, at the same addresses, would look like the one that was read.
        self._memory.require_same_program()
        self.python.require_usable()
        self.python.find_main_thread()
        for tid in sorted(threads.ids(), key=lambda each: each != self._pid):
            registers = threads.registers(tid)
            if this_machine().belongs_to(registers, self.python.main_thread, self._record_nbytes):
                return tid, registers
        raise UnsafeToAttach("its main thread has exited, or its memory layout is unexpected")

    def _text(self, drop: ScriptDrop, place: int) -> bytes:
        # Padded to a fixed width, so that its length is known: what follows it may be in use.
        lines = _AFTERWARDS.format(address=f"{place:16d}", nbytes="{nbytes}")
        nbytes = len(drop.starter(lines).encode()) + 1
        return drop.starter(lines.replace("{nbytes}", f"{nbytes:8d}")).encode() + b"\0"

    def _places(self, nbytes: int) -> Iterator[int]:
        """Addresses where *nbytes* are zero, after a zero byte: a text before it ends there."""
        for begins, ends in self._tails:
            data = self._memory.read(begins, ends - begins)
            at = 0
            while at + nbytes <= len(data):
                if not any(data[max(0, at - 1) : at + nbytes]):
                    yield begins + at
                    at += (nbytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
                else:
                    at += _ALIGNMENT

    def _is_free(self, place: int) -> bool:
        return not any(self._memory.read(place - 1, len(self._texts[place]) + 1))


def _tails(program: ElfImage, found: list[ElfImage], maps: tuple[MapLine, ...]) -> Iterator[tuple[int, int]]:
    """Unused ends of small libraries' pages, which are written to anyway.

    Not of the program, after which the heap may begin, nor of the dynamic loader, which uses its own.
    """

    def rank(each: ElfImage) -> int:
        name = os.path.basename(each.path).partition(".")[0].partition("-")[0]
        if name in _SMALL_LIBRARIES:
            return _SMALL_LIBRARIES.index(name)
        return len(_SMALL_LIBRARIES) if "/lib-dynload/" in each.path else -1

    for each in sorted((one for one in found if one is not program and rank(one) >= 0), key=rank):
        tail = each.tail()
        if tail and any(tail[0] in line and line.permissions.startswith(b"rw") for line in maps):
            yield tail


def _no_free_place() -> UnsafeToAttach:
    return UnsafeToAttach(
        "it has no free slot for a request: earlier ones still wait for its main thread",
        "try again when its main thread is back in Python",
        passing=True,
    )


NAME: Via = "ptrace"


def unavailable_reason(process: TargetProcess) -> str | None:
    return why_unavailable(process, Injection, lambda injection: injection.python.require_usable())


def run(process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    until = time.monotonic() + deadline_s
    with attach(process, Injection, lambda: ScriptDrop(request, process, until)) as (injection, drop, pidfd):
        return inject_and_wait(injection, drop, pidfd, until)

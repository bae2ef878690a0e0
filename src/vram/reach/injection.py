"""Inject a few lines of source into a CPython with ptrace, without a debugger.

Every thread is stopped for about a millisecond, while the lines are written where nothing else writes, and
the main thread is made to run them by one of three routes (see :mod:`vram.reach.execution`). The lines start
a thread for the payload and return at once. Until they ran, the injection is retried or withdrawn.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from vram.errors import AttachDenied, NoSuchProcess, NotReachable
from vram.host.local.seccomp import ThreadLimits
from vram.model.inside import Via
from vram.payloads.procfs import MapLine
from vram.reach import elf
from vram.reach.cpython import RemotePython
from vram.reach.elf import ElfImage
from vram.reach.execution import ExecutionRoutes, Route
from vram.reach.payload import PayloadRequest, RawAnswer
from vram.reach.ptrace import (
    Identity,
    StoppedThreads,
    TargetEnded,
    TargetMemory,
    TraceDenied,
    UnsafeToAttach,
    identity,
    while_stopped,
)
from vram.reach.python_process import (
    PythonProcess,
    lasting_tracer,
    namespace_mismatch,
    pidfd_of,
    tracer,
    why_not_traced,
)
from vram.reach.script_drop import ScriptDrop

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
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.05, 2.0
# How long after the deadline a call is tried to be withdrawn: others may be at the process just then.
_WITHDRAW_S = 2.0

Attachment = TypeVar("Attachment")
Kind = Callable[[PythonProcess, TargetMemory], Attachment]


def why_unavailable(
    process: PythonProcess, kind: Kind[Attachment], check: Callable[[Attachment], object]
) -> str | None:
    """Why *process* cannot be written to, *check* being the injector's own; None where it can.

    Nothing is stopped or changed to find out. Raises AttachDenied where the kernel forbids it.
    """
    mismatch = namespace_mismatch(process.pid)
    if mismatch is not None:
        return mismatch
    other = lasting_tracer(process.pid)
    if other:
        raise AttachDenied(
            f"pid {process.pid} is already being traced by pid {other}",
            hint="stop that first, or wait for it",
        )
    try:
        with open_target(process, kind) as attachment:
            check(attachment)
    except TraceDenied as error:
        raise _explain_denial(process, error) from error
    except TargetEnded as error:
        raise NoSuchProcess(f"process {process.pid} has exited") from error
    except UnsafeToAttach as error:
        return f"{error}; {error.hint}" if error.hint else str(error)
    return None


@contextmanager
def attach(
    process: PythonProcess, kind: Kind[Attachment], request: PayloadRequest, until: float
) -> Iterator[tuple[Attachment, ScriptDrop, int]]:
    """:func:`open_target`, the drop with the payload, and a pidfd of *process*.

    What is unsafe or forbidden within is raised as the errors that commands know.
    """
    try:
        with (
            open_target(process, kind) as attachment,
            pidfd_of(process) as pidfd,
            ScriptDrop(request, process, until) as drop,
        ):
            yield attachment, drop, pidfd
    except TraceDenied as error:
        raise _explain_denial(process, error) from error
    except TargetEnded as error:
        raise NoSuchProcess(f"process {process.pid} has exited") from error
    except UnsafeToAttach as error:
        raise NotReachable(f"pid {process.pid} was not touched: {error}", hint=error.hint) from error


def inject_and_wait(injection: Injection, drop: ScriptDrop, pidfd: int, until: float) -> RawAnswer:
    """Inject, wait for the answer; cancelled, neither call nor text stays. Raises UnsafeToAttach."""
    injection.inject(drop, until)
    pause_s = _FIRST_PAUSE_S
    try:
        while not drop.wait(pidfd, min(until, time.monotonic() + pause_s)):
            if time.monotonic() >= until:
                raise drop.timed_out()
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            with suppress(UnsafeToAttach):
                injection.retry()
    except BaseException:
        drop.cancel()
        with suppress(UnsafeToAttach):
            injection.withdraw()
        raise
    return RawAnswer(drop.answer(pidfd), injection.stopped_s)


@contextmanager
def open_target(process: PythonProcess, kind: Kind[Attachment]) -> Iterator[Attachment]:
    """An Injection, or another *kind* of request, to *process*, not yet made. Raises UnsafeToAttach."""
    machine = os.uname().machine
    if machine != "x86_64":
        raise UnsafeToAttach(
            f"this machine is {machine}", "only x86-64 is supported; have it call vram.agent()"
        )
    memory = TargetMemory(process.pid)
    try:
        yield kind(process, memory)
    finally:
        memory.close()


def verify_identity(process: PythonProcess) -> Identity:
    """The identity of *process* now. Raises TargetEnded where it is not the one that was meant."""
    about = identity(process.pid)
    if about[0] != process.target.process.started_at or about[2] != process.target.uid:
        raise TargetEnded("the pid now belongs to a different process")
    _require_same_limits(about, process.limits)
    return about


def require_same_process(pid: int, about: Identity) -> None:
    """Raise where *pid* is not the process *about* any more, or has given up system calls since."""
    now = identity(pid)
    if now[:3] != about[:3]:
        raise TargetEnded("it started another program or changed its user in the meantime")
    _require_same_limits(now, about[3])


def _require_same_limits(now: Identity, limits: ThreadLimits | None) -> None:
    if now[3] != limits:
        raise UnsafeToAttach("it has given up system calls (seccomp) just now")


class Injection:
    """One process, one text: injected, retried, withdrawn."""

    def __init__(self, process: PythonProcess, memory: TargetMemory) -> None:
        self._process, self._pid, self._memory = process, process.pid, memory
        self._about = verify_identity(process)
        maps = elf.mappings(self._pid)
        found = list(elf.images(memory, maps))
        program = next((each for each in found if each.path == self._about[1]), None)
        if program is None:
            raise UnsafeToAttach(
                "it is not an x86-64 program",
                "only x86-64 is supported; have it call vram.agent()",
            )
        self.python = RemotePython(memory, elf.python_image(program, found), process.minor, maps)
        self._routes = ExecutionRoutes(memory, self.python, program, found, maps)
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
            if registers["fs_base"] == self.python.main_thread:
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


def once_it_is_safe(
    attempt: Callable[[], object], until: float, longest_pause_s: float = _MAX_PAUSE_S
) -> None:
    """Make the *attempt*; a state that passes is waited for, until then. Raises UnsafeToAttach."""
    pause_s = _FIRST_PAUSE_S / 10
    while True:
        try:
            attempt()
        except UnsafeToAttach as error:
            if not error.passing or time.monotonic() + pause_s > until:
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_pause_s)
        else:
            return


def _no_free_place() -> UnsafeToAttach:
    return UnsafeToAttach(
        "it has no free slot for a request: earlier ones still wait for its main thread",
        "try again when its main thread is back in Python",
        passing=True,
    )


def _explain_denial(process: PythonProcess, error: TraceDenied) -> AttachDenied:
    other = tracer(process.pid)
    if other:
        return AttachDenied(f"pid {process.pid} is being traced by pid {other}", hint="stop that first")
    return AttachDenied(f"cannot attach to pid {process.pid}: {error}", hint=why_not_traced())


NAME: Via = "ptrace"


def unavailable_reason(process: PythonProcess) -> str | None:
    return why_unavailable(process, Injection, lambda injection: injection.python.require_usable())


def run(process: PythonProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    until = time.monotonic() + deadline_s
    with attach(process, Injection, request, until) as (injection, drop, pidfd):
        return inject_and_wait(injection, drop, pidfd, until)

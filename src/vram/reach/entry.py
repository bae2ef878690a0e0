"""A few lines put into a CPython's memory, and looked after until they ran or are taken back.

Every thread is held still for about a millisecond, while the lines are put where nobody else writes,
and the main thread is made to run them by one of three routes (see :mod:`vram.reach.routes`). The lines
start a thread for the payload and return at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from vram.errors import AttachDenied, NoSuchProcess, NotReachable
from vram.reach import image
from vram.reach.cpython import Python
from vram.reach.image import Image
from vram.reach.permission import why_not_traced
from vram.reach.ptrace import Denied, Ended, Identity, Memory, Threads, Unsafe, identity, while_stopped
from vram.reach.python_process import PythonProcess, lasting_tracer, shares_our_world, tracer
from vram.reach.request import Raw
from vram.reach.routes import Route, Routes
from vram.reach.script_drop import ScriptDrop

# Runs last in the thread that the lines start: they are taken away, so that others find the place free.
_AFTERWARDS = """\
try:
 with open("/proc/self/mem","r+b",0) as f:f.seek({address});f.write(bytes({nbytes}))
except BaseException:pass
"""
_SMALL_LIBRARIES = (
    "libm",
    "libpthread",
    "libdl",
    "librt",
    "libutil",
    "liblzma",
    "libz",
    "libbz2",
    "libexpat",
    "libffi",
    "libcrypt",
)
_ALIGNMENT = 64
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


def require_known_machine() -> None:
    machine = os.uname().machine
    if machine != "x86_64":
        raise Unsafe(f"this machine is {machine}", "only x86-64 is known; have it call vram.agent()")


def why_closed(process: PythonProcess, require: Callable[[], None]) -> str | None:
    """Why no way through memory leads in, *require* being what this one asks for; None where it does.

    Nothing is stopped or changed to find out. Raises what the kernel forbids.
    """
    other_world = shares_our_world(process.pid)
    if other_world is not None:
        return other_world
    other = lasting_tracer(process.pid)
    if other:
        raise AttachDenied(
            f"pid {process.pid} is being traced by pid {other} already", hint="end that first, or wait for it"
        )
    try:
        require()
    except Denied as error:
        raise _denied(process, error) from error
    except Ended as error:
        raise NoSuchProcess(f"process {process.pid} has ended meanwhile") from error
    except Unsafe as error:
        return f"{error}; {error.hint}" if error.hint else str(error)
    return None


@contextmanager
def refusals(process: PythonProcess) -> Iterator[None]:
    """What is unsafe or forbidden within, as a refusal of the visit."""
    try:
        yield
    except Denied as error:
        raise _denied(process, error) from error
    except Ended as error:
        raise NoSuchProcess(f"process {process.pid} has ended meanwhile") from error
    except Unsafe as error:
        raise NotReachable(f"pid {process.pid} was left alone: {error}", hint=error.hint) from error


def converse(entry: Entry, drop: ScriptDrop, pidfd: int, until: float) -> Raw:
    """Go in, wait for the answer; called off, neither note nor text stays. Raises Unsafe."""
    entry.go_in(drop, until)
    pause_s = _FIRST_PAUSE_S
    try:
        while not drop.wait(pidfd, min(until, time.monotonic() + pause_s)):
            if time.monotonic() >= until:
                raise drop.silence()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            with suppress(Unsafe):
                entry.look_again()
    except BaseException:
        drop.call_off()
        with suppress(Unsafe):
            entry.take_back()
        raise
    return Raw(drop.answer(pidfd), entry.stopped_s)


@contextmanager
def opened(process: PythonProcess) -> Iterator[Entry]:
    """A process made ready to be visited, not yet touched. Raises Unsafe."""
    require_known_machine()
    memory = Memory(process.pid)
    try:
        yield Entry(process, memory)
    finally:
        memory.close()


def identity_of(process: PythonProcess) -> Identity:
    """Who *process* is now. Raises Ended where it is not the one that was meant."""
    about = identity(process.pid)
    if about[0] != process.target.process.started_at or about[2] != process.target.uid:
        raise Ended("it is another process than the one that was meant")
    return about


class Entry:
    """One process, one text: put in, looked after, taken back."""

    def __init__(self, process: PythonProcess, memory: Memory) -> None:
        self._process, self._pid, self._memory = process, process.pid, memory
        self._about = identity_of(process)
        lines = image.mappings(self._pid)
        found = list(image.images(memory, lines))
        program = next((each for each in found if each.path == self._about[1]), None)
        if program is None:
            raise Unsafe(
                "it is no program for x86-64",
                "only x86-64 is known; a program for another machine can call vram.agent()",
            )
        self.python = Python(memory, image.holder(program, found), process.minor, lines)
        self._routes = Routes(memory, self.python, program, found, lines)
        self._tails = list(_tails(program, found, lines))
        self._texts: dict[int, bytes] = {}
        self._place: int | None = None
        self.route: Route | None = None
        self.stopped_s = 0.0

    def go_in(self, drop: ScriptDrop, until: float) -> None:
        """Stop the process, have it run the drop's lines soon, let it go."""
        pause_s = _FIRST_PAUSE_S / 10
        nbytes = len(self._text(drop, 0)) + _ALIGNMENT
        while True:
            try:
                self._texts = {place: self._text(drop, place) for place in self._places(nbytes)}
                self._prepare()
                self.route = self._stopped(self._put_in)
            except Unsafe as error:
                # What passes is waited for, as long as the visit has time.
                if not error.passing or time.monotonic() + pause_s > until:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return

    def look_again(self) -> None:
        """It has not answered yet. Where its note still waits, take the route that is open now."""
        if self.route == "at-rest" or self._place is None:
            return
        if not self.python.seems_to_have_note(self._place):
            self.route = "at-rest"  # it was taken from the list: it runs
            return
        self._prepare()
        self.route = self._stopped(self._renew)

    def take_back(self) -> None:
        """The visit is called off: neither note nor text stays, where they are still there."""
        if self._place is not None:
            self._stopped(self._remove)

    def _prepare(self) -> None:
        """Everything that need not be learnt while it stands still."""
        self._routes.prepare(self._pid)
        with suppress(Unsafe):
            self.python.require_usable()
            self.python.find_main_thread()

    def _stopped(self, action: Callable[[Threads], Route | None]) -> Route | None:
        route, stopped_s = while_stopped(self._pid, action)
        self.stopped_s += stopped_s
        return route

    def _put_in(self, threads: Threads) -> Route:
        tid, registers = self._main_thread(threads)
        place = next((each for each in self._texts if self._is_free(each)), None)
        if place is None:
            raise Unsafe(
                "there is no free place for a few lines in it: earlier visits wait for its main thread",
                "try again when its main thread has returned to Python",
            )
        route = self._routes.choose(threads, tid, registers)
        self._memory.write(place, self._texts[place])
        self._place = place
        self._follow(route, threads, tid, registers, place)
        return route

    def _follow(
        self, route: Route, threads: Threads, tid: int, registers: dict[str, int], place: int
    ) -> None:
        if route == "at-rest":
            self._routes.run_at_rest(threads, tid, registers, place)
            return
        self.python.leave_note(place)
        if route == "waiting":
            self._routes.interrupt(threads, tid, registers)

    def _renew(self, threads: Threads) -> Route:
        assert self._place is not None
        tid, registers = self._main_thread(threads)
        if not self.python.has_note(self._place):
            return "at-rest"  # it was taken from the list: it runs
        route = self._routes.choose(threads, tid, registers)
        if route == "at-rest":
            if not self.python.take_note_back(self._place):
                return "at-work"
            self._routes.run_at_rest(threads, tid, registers, self._place)
            return route
        self.python.raise_flags()
        if route == "waiting":
            self._routes.interrupt(threads, tid, registers)
        return route

    def _remove(self, threads: Threads) -> None:
        assert self._place is not None
        self._main_thread(threads)
        text = self._texts[self._place]
        if not self.python.has_note(self._place) or self._memory.read(self._place, len(text)) != text:
            return
        # A note before others' cannot be taken out; an empty text does nothing.
        self.python.take_note_back(self._place)
        self._memory.write(self._place, bytes(len(text)))

    def _main_thread(self, threads: Threads) -> tuple[int, dict[str, int]]:
        """Python's main thread; raises where this is not the process that was meant, or not as expected."""
        if identity(self._pid) != self._about:
            raise Ended("it began another program, or became somebody else's, meanwhile")
        self.python.require_usable()
        self.python.find_main_thread()
        for tid in sorted(threads.ids(), key=lambda each: each != self._pid):
            registers = threads.registers(tid)
            if registers["fs_base"] == self.python.main_thread:
                return tid, registers
        raise Unsafe("its main thread has ended, or its memory is not laid out as expected")

    def _text(self, drop: ScriptDrop, place: int) -> bytes:
        # As wide as the number will be, and no byte more: what lies behind may be somebody else's.
        lines = _AFTERWARDS.format(address=f"{place:16d}", nbytes="{nbytes}")
        nbytes = len(drop.starter(lines).encode()) + 1
        return drop.starter(lines.replace("{nbytes}", f"{nbytes:8d}")).encode() + b"\0"

    def _places(self, nbytes: int) -> Iterator[int]:
        """Where so many bytes are zero, behind a zero: a text before it ends there."""
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


def _tails(program: Image, found: list[Image], lines: tuple[image.Mapping, ...]) -> Iterator[tuple[int, int]]:
    """Unused ends of small libraries, in pages that are written to anyway.

    Not of the program, behind which the heap may begin, nor of the dynamic loader, which uses its own.
    """

    def rank(each: Image) -> int:
        name = os.path.basename(each.path).partition(".")[0].partition("-")[0]
        if name in _SMALL_LIBRARIES:
            return _SMALL_LIBRARIES.index(name)
        return len(_SMALL_LIBRARIES) if "/lib-dynload/" in each.path else -1

    for each in sorted((one for one in found if one is not program and rank(one) >= 0), key=rank):
        tail = each.tail()
        if tail and any(tail[0] in line and line.permissions.startswith("rw") for line in lines):
            yield tail


def _denied(process: PythonProcess, error: Denied) -> AttachDenied:
    other = tracer(process.pid)
    if other:
        return AttachDenied(f"pid {process.pid} is being traced by pid {other}", hint="end that first")
    return AttachDenied(f"pid {process.pid} may not be attached to: {error}", hint=why_not_traced())

"""Python 3.14's interface for debuggers (PEP 768), used from outside: memory writes, no program is run.

``sys.remote_exec`` would need a Python of the same version. The only one at hand is the target's own
interpreter, a file of its user's, which nobody else should run. So its protocol is spoken here: the
path of a script, a flag, and a bit that the main thread looks at.

They are written while every thread is held still: nobody changes the bits meanwhile, frees the
thread's state, or begins another program. Killed between any two writes, the path means nothing
without the flag; the flag without the bit is seen at the next safe point. Where the main thread waits
and comes to no safe point, the request is taken back and :mod:`vram.reach.entry` goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from vram.model.inside import Via
from vram.reach import debug_offsets, image
from vram.reach.debug_offsets import FIRST_MINOR, MainThread
from vram.reach.entry import (
    Entry,
    converse,
    identity_of,
    opened,
    refusals,
    require_known_machine,
    why_closed,
)
from vram.reach.ptrace import Ended, Memory, Threads, Unsafe, identity, while_stopped
from vram.reach.python_process import PythonProcess, pidfd_of
from vram.reach.request import Raw, Request
from vram.reach.script_drop import ScriptDrop, is_left_behind, remove_left_behind

NAME: Via = "remote-exec"

_PLEASE_STOP = 1 << 5  # of the eval breaker: the main thread looks for requests
# A main thread that is at work comes to a safe point within that time, or is not expected soon.
_AT_WORK_S = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.5


def closed(process: PythonProcess) -> str | None:
    """Why this way does not lead in; nothing is stopped or changed to find out."""
    if process.minor is not None and process.minor < FIRST_MINOR:
        return f"its Python 3.{process.minor} has no sys.remote_exec (3.{FIRST_MINOR} has)"

    def require() -> None:
        with _opened(process) as interface:
            interface.find_main_thread()

    return why_closed(process, require)


def visit(process: PythonProcess, request: Request, deadline_s: float) -> Raw:
    until = time.monotonic() + deadline_s
    with (
        refusals(process),
        _opened(process) as interface,
        pidfd_of(process) as pidfd,
        ScriptDrop(request, process, until) as drop,
    ):
        return _converse(process, interface, drop, pidfd, until)


def _converse(
    process: PythonProcess, interface: Interface, drop: ScriptDrop, pidfd: int, until: float
) -> Raw:
    try:
        interface.request(drop.script(), until)
        with ExitStack() as stack:
            entry, pause_s = None, _AT_WORK_S
            while not drop.wait(pidfd, min(until, time.monotonic() + pause_s)):
                if time.monotonic() >= until:
                    raise drop.silence()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                entry = entry or _other_routes(process, stack)
                if entry is not None and _was_taken_back(interface):
                    drop.forget_script()
                    raw = converse(entry, drop, pidfd, until)
                    return Raw(raw.body, interface.stopped_s + (raw.stopped_s or 0.0))
            return Raw(drop.answer(pidfd), interface.stopped_s)
    except BaseException:
        drop.call_off()
        # Where it cannot be taken back, the script that it names is left there, empty.
        with suppress(Unsafe):
            if _was_taken_back(interface) or _was_taken_back(interface):
                drop.forget_script()
        raise


def _was_taken_back(interface: Interface) -> bool:
    """False where it has been seen meanwhile, or where the process cannot be stopped just now."""
    try:
        return interface.take_back()
    except Unsafe as error:
        if not error.passing:
            raise
        return False


def _other_routes(process: PythonProcess, stack: ExitStack) -> Entry | None:
    """The process made ready for the routes that wake it up; None where they do not lead in."""
    try:
        entry = stack.enter_context(opened(process))
        entry.python.require_usable()
    except Ended:
        raise
    except Unsafe:
        return None
    return entry


@contextmanager
def _opened(process: PythonProcess) -> Iterator[Interface]:
    require_known_machine()
    memory = Memory(process.pid)
    try:
        yield Interface(process, memory)
    finally:
        memory.close()


class Interface:
    """The interface of one process, and at most one request of ours in it."""

    def __init__(self, process: PythonProcess, memory: Memory) -> None:
        self._pid, self._tid, self._memory = process.pid, process.pid_inside, memory
        self._about = identity_of(process)
        lines = image.mappings(self._pid)
        found = image.find_python(memory, lines, self._about[1])
        runtime = found.symbol("_PyRuntime")
        assert runtime is not None
        self._runtime = runtime
        self._writable = image.writable(lines)
        self._offsets = debug_offsets.read(memory, runtime)
        self._path = b""
        self.stopped_s = 0.0

    def find_main_thread(self) -> MainThread:
        """Raise where a request cannot be left now; certain only while nobody runs."""
        thread = debug_offsets.find_main_thread(
            self._memory, self._runtime, self._offsets, self._writable, self._tid
        )
        if not thread.remote_debugging:
            raise Unsafe(
                "it was started with remote debugging disabled",
                "unset PYTHON_DISABLE_REMOTE_DEBUG (or drop -X disable-remote-debug) before its next start",
            )
        return thread

    def request(self, script: str, until: float) -> None:
        """Have the main thread run *script* at its next safe point. What passes is waited for."""
        path = os.fsencode(script)
        if len(path) >= self._offsets.script_path_nbytes:
            raise Unsafe(
                f"the path of the script is too long for it ({len(path)} bytes)", "set XDG_RUNTIME_DIR"
            )
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                abandoned = self._abandoned_path()
                self._stopped(partial(self._write, path, abandoned))
            except Unsafe as error:
                if not error.passing or time.monotonic() + pause_s > until:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                if abandoned is not None:
                    remove_left_behind(os.fsdecode(abandoned), self._pid)
                return

    def take_back(self) -> bool:
        """Whether the request was still there; it is not any more."""
        if not self._path:
            return False
        was_there = self._stopped(self._erase)
        self._path = b""
        return was_there

    def _stopped(self, action: Callable[[], bool]) -> bool:
        def checked(_: Threads) -> bool:
            if identity(self._pid) != self._about:
                raise Ended("it began another program, or became somebody else's, meanwhile")
            return action()

        done, stopped_s = while_stopped(self._pid, checked)
        self.stopped_s += stopped_s
        return done

    def _write(self, path: bytes, abandoned: bytes | None) -> bool:
        memory, offsets = self._memory, self._offsets
        state = self.find_main_thread().state
        support = state + offsets.support
        waiting = self._waiting(support)
        if waiting is not None and waiting != abandoned:
            raise Unsafe("another debugger's request waits in it", "try again in a moment", passing=True)
        if waiting is not None:
            memory.write(support + offsets.pending_call, bytes(4))
        memory.write(support + offsets.script_path, path + b"\0")
        self._path = path
        memory.write(support + offsets.pending_call, (1).to_bytes(4, "little"))
        (low,) = memory.read(state + offsets.eval_breaker, 1)
        memory.write(state + offsets.eval_breaker, bytes([low | _PLEASE_STOP]))
        return True

    def _erase(self) -> bool:
        """The bit stays: the main thread looks, finds nothing, and goes on."""
        support = self.find_main_thread().state + self._offsets.support
        if self._waiting(support) != self._path:
            return False
        self._memory.write(support + self._offsets.pending_call, bytes(4))
        self._memory.write(support + self._offsets.script_path, bytes(len(self._path)))
        return True

    def _abandoned_path(self) -> bytes | None:
        """A request that waits there, left by a visit of ours that was killed."""
        support = self.find_main_thread().state + self._offsets.support
        waiting = self._waiting(support)
        return waiting if waiting is not None and is_left_behind(os.fsdecode(waiting), self._pid) else None

    def _waiting(self, support: int) -> bytes | None:
        """The path of the request that the main thread has not seen yet."""
        offsets = self._offsets
        if self._memory.small(support + offsets.pending_call) != 1:
            return None
        path = self._memory.read(support + offsets.script_path, offsets.script_path_nbytes)
        return path.partition(b"\0")[0]

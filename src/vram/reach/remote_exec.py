"""Python 3.14's interface for debuggers (PEP 768, ``sys.remote_exec``), used from outside by memory writes.

``sys.remote_exec`` itself would need a Python of the same version. The only one known is the target's own
interpreter, a file of its user's, which no other user should run. So its protocol is implemented here: the
path of a script, a flag, and a bit that the main thread checks.

They are written while every thread is stopped: nothing changes the bits meanwhile, frees the thread's state,
or begins another program. Killed between any two writes, the path means nothing without the flag; the flag
without the bit is noticed at the next safe point. Where the main thread waits and reaches no safe point, the
request is withdrawn and :mod:`vram.reach.injection` is used.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial

from vram.model.inside import Via
from vram.payloads.procfs import read_stat
from vram.reach import cpython, elf
from vram.reach.attachment import (
    attach,
    once_it_is_safe,
    open_target,
    require_same_process,
    verify_identity,
    why_unavailable,
)
from vram.reach.cpython import FIRST_REMOTE_EXEC_MINOR, MainThread
from vram.reach.injection import Injection, inject_and_wait
from vram.reach.payload import PayloadRequest, RawAnswer
from vram.reach.ptrace import (
    StoppedThreads,
    TargetEnded,
    TargetMemory,
    UnsafeToAttach,
    while_stopped,
)
from vram.reach.script_drop import ScriptDrop, is_left_behind, remove_left_behind
from vram.reach.target_process import ENDING_S, TargetProcess, died, has_ended

NAME: Via = "remote-exec"

_PLEASE_STOP = 1 << 5  # of the eval breaker: the main thread checks for requests
# A main thread that is at work reaches a safe point within that time, or is not expected to soon.
_AT_WORK_S = 0.05
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.005, 0.5


def unavailable_reason(process: TargetProcess) -> str | None:
    """Why it cannot be used; nothing is stopped or changed to find out."""
    if process.minor is not None and process.minor < FIRST_REMOTE_EXEC_MINOR:
        return f"its Python 3.{process.minor} has no sys.remote_exec (new in 3.{FIRST_REMOTE_EXEC_MINOR})"
    # The main thread opens a script, and only where it sees the files that we see can we make one for it.
    return why_unavailable(process, DebuggerInterface, DebuggerInterface.find_main_thread, same_files=True)


def run(process: TargetProcess, request: PayloadRequest, deadline_s: float) -> RawAnswer:
    until = time.monotonic() + deadline_s
    with attach(process, DebuggerInterface, lambda: ScriptDrop(request, process, until)) as found:
        interface, drop, pidfd = found
        return _request_and_wait(process, interface, drop, pidfd, until)


def _request_and_wait(
    process: TargetProcess, interface: DebuggerInterface, drop: ScriptDrop, pidfd: int, until: float
) -> RawAnswer:
    try:
        interface.request(drop.script(), until)
        with ExitStack() as stack:
            injection, pause_s = None, _AT_WORK_S
            while not drop.wait(pidfd, min(until, time.monotonic() + pause_s)):
                if time.monotonic() >= until:
                    raise drop.timed_out()
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                injection = injection or _prepared_injection(process, stack)
                if injection is not None and _was_withdrawn(interface):
                    drop.close_script()
                    raw = inject_and_wait(injection, drop, pidfd, until)
                    return RawAnswer(raw.body, interface.stopped_s + (raw.stopped_s or 0.0))
            return RawAnswer(drop.answer(pidfd), interface.stopped_s)
    except TargetEnded as error:
        drop.cancel()
        if interface.requested and has_ended(pidfd, ENDING_S):
            raise died(process.pid) from error
        raise
    except BaseException as error:
        drop.cancel()
        if isinstance(error, UnsafeToAttach) and interface.requested and _is_ending(process.pid, pidfd):
            raise died(process.pid) from error
        # Where it cannot be withdrawn, the script that it names stays there, empty.
        with suppress(UnsafeToAttach):
            if _was_withdrawn(interface) or _was_withdrawn(interface):
                drop.close_script()
        raise


def _is_ending(pid: int, pidfd: int) -> bool:
    """Whether it has ended, or is about to: its main thread has ended, and the others follow at once."""
    seen = read_stat(pid)
    return has_ended(pidfd, ENDING_S if seen is None or seen.state in "ZX" else 0.0)


def _was_withdrawn(interface: DebuggerInterface) -> bool:
    """False where the process took it meanwhile, or cannot be stopped just now."""
    try:
        return interface.withdraw()
    except UnsafeToAttach as error:
        if not error.passing:
            raise
        return False


def _prepared_injection(process: TargetProcess, stack: ExitStack) -> Injection | None:
    """An injection, whose routes interrupt waits; None where it cannot be used."""
    try:
        injection = stack.enter_context(open_target(process, Injection))
        injection.python.require_usable()
    except TargetEnded:
        raise
    except UnsafeToAttach:
        return None
    return injection


class DebuggerInterface:
    """The interface for debuggers of one process, and at most one request of ours in it."""

    def __init__(self, process: TargetProcess, memory: TargetMemory) -> None:
        self._pid, self._tid, self._memory = process.pid, process.pid_inside, memory
        self._about = verify_identity(process)
        lines = elf.mappings(self._pid)
        found = elf.find_python(memory, lines, self._about[1])
        runtime = found.symbol("_PyRuntime")
        assert runtime is not None
        self._runtime = runtime
        self._writable = elf.writable(lines)
        self._offsets = cpython.read_debug_offsets(memory, runtime)
        self._path = b""
        self.stopped_s = 0.0

    def find_main_thread(self) -> MainThread:
        """Raise where a request cannot be made now; certain only while every thread is stopped."""
        thread = cpython.find_main_thread(
            self._memory, self._runtime, self._offsets, self._writable, self._tid
        )
        if not thread.remote_debugging:
            raise cpython.remote_debugging_disabled()
        return thread

    def request(self, script: str, until: float) -> None:
        """Have the main thread run *script* at its next safe point. Waits for states that pass."""
        path = os.fsencode(script)
        if len(path) >= self._offsets.script_path_size:
            raise UnsafeToAttach(
                f"the path of the script is too long for it ({len(path)} bytes)", "set XDG_RUNTIME_DIR"
            )

        def attempt() -> None:
            abandoned = self._abandoned_path()
            self._while_stopped(partial(self._write, path, abandoned))
            if abandoned is not None:
                remove_left_behind(os.fsdecode(abandoned), self._pid)

        once_it_is_safe(attempt, until, _MAX_PAUSE_S)

    @property
    def requested(self) -> bool:
        """Whether a request was made and not withdrawn."""
        return bool(self._path)

    def withdraw(self) -> bool:
        """Remove the request; whether it was still there."""
        if not self._path:
            return False
        was_there = self._while_stopped(self._erase)
        self._path = b""
        return was_there

    def _while_stopped(self, action: Callable[[], bool]) -> bool:
        def checked(_: StoppedThreads) -> bool:
            require_same_process(self._pid, self._about)
            return action()

        done, stopped_s = while_stopped(self._pid, checked)
        self.stopped_s += stopped_s
        return done

    def _write(self, path: bytes, abandoned: bytes | None) -> bool:
        memory, offsets = self._memory, self._offsets
        state = self.find_main_thread().state
        support = state + offsets.support
        pending = self._pending_path(support)
        if pending is not None and pending != abandoned:
            raise UnsafeToAttach(
                "another debugger's request is pending in it", "try again in a moment", passing=True
            )
        if pending is not None:
            memory.write(support + offsets.pending_call, bytes(4))
        memory.write(support + offsets.script_path, path + b"\0")
        self._path = path
        memory.write(support + offsets.pending_call, (1).to_bytes(4, "little"))
        (low,) = memory.read(state + offsets.eval_breaker, 1)
        memory.write(state + offsets.eval_breaker, bytes([low | _PLEASE_STOP]))
        return True

    def _erase(self) -> bool:
        """The bit stays: the main thread checks, finds nothing, and goes on."""
        support = self.find_main_thread().state + self._offsets.support
        if self._pending_path(support) != self._path:
            return False
        self._memory.write(support + self._offsets.pending_call, bytes(4))
        self._memory.write(support + self._offsets.script_path, bytes(len(self._path)))
        return True

    def _abandoned_path(self) -> bytes | None:
        """The path of a request that was left by a run of ours that was killed; None where there is none."""
        support = self.find_main_thread().state + self._offsets.support
        pending = self._pending_path(support)
        return pending if pending is not None and is_left_behind(os.fsdecode(pending), self._pid) else None

    def _pending_path(self, support: int) -> bytes | None:
        """The path of the request that the main thread has not taken yet."""
        offsets = self._offsets
        if self._memory.int32(support + offsets.pending_call) != 1:
            return None
        path = self._memory.read(support + offsets.script_path, offsets.script_path_size)
        return path.partition(b"\0")[0]

"""The driver's own threads in another process, which run although that process is stopped.

The driver checkpoints and restores a process by threads of its own in it. While the memory is away, any other
thread of the process that asks for a stream or an event dies of SIGSEGV and takes the process along (measured
on an H200, driver 580.159.04). So the process is stopped by SIGSTOP, and only the driver's threads run: the
kernel lets a tracer continue single threads of a stopped process. When the tracer is killed, the kernel stops
them again, so the program never runs without its memory, whatever happens to us.

The vram that started us may trace the other threads, so that they stay where they are, whoever continues the
process: a thread that our parent traces counts as stopped.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress

from vram.payloads import ptrace
from vram.payloads.procfs import ProcessFolder, Stat, is_driver_thread

NO_PERMISSION = "no permission to trace it"
KEEPS_STARTING = "it keeps starting threads with names of the driver's"
_TURN_S, _MAX_TURN_S = 0.0005, 0.005
# Each deadline is compared before a look: a worker that was frozen after it looks once more.
# A thread that hangs in the kernel (state D) does not stop before its call returns.
STOP_S = 5.0
_LEAVE_S = 2.0
_OTHERS_S = 0.5
# The driver has a handful of threads in a process; any thread can have their names.
_SEIZE_S = 2.0


class CannotHold(Exception):
    """Why only the driver's threads of a process cannot be made to run; nothing was done to it."""


class DriverThreads:
    """The driver's threads of one process. Inside ``with`` they run, also while the process is stopped."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seized: set[int] = set()
        self._begun, self._leave = threading.Event(), threading.Event()
        self._error: Exception | None = None
        # A thread is traced by one thread, and ours may be inside the driver for a minute.
        self._tracer = threading.Thread(target=self._trace, daemon=True)

    def __enter__(self) -> DriverThreads:
        try:
            self._tracer.start()
        except RuntimeError as error:
            raise CannotHold("vram cannot start a thread to trace it with") from error
        self._begun.wait()
        if self._error is not None:
            self._tracer.join()
            raise self._error
        return self

    def __exit__(self, *raised: object) -> None:
        self._leave.set()
        self._tracer.join()

    def _trace(self) -> None:
        try:
            self._seize_all()
        except (OSError, CannotHold) as error:
            self._error = error if isinstance(error, CannotHold) else CannotHold(str(error))
            return
        finally:
            if self._error is not None:
                self._detach_all()
            self._begun.set()
        # They stop when the work begins; after that a checkpoint takes seconds in which nothing happens.
        pause_s = _TURN_S
        while not self._leave.wait(pause_s):
            pause_s = _TURN_S if self._continue_stopped() else min(1.1 * pause_s, _MAX_TURN_S)
        self._detach_all()

    def _seize_all(self) -> None:
        # A debugger may continue the one thread that it traces, whether the process is stopped or not.
        # Another vram that only asks for the state of the process is gone in a moment.
        deadline = time.monotonic() + _OTHERS_S
        while True:
            is_late = time.monotonic() > deadline
            tracer = tracer_of(self._pid)
            if tracer is None and self._seize_each():
                break
            self._detach_all()  # of two that have seized one thread each, none would go on
            if is_late:
                raise CannotHold(NO_PERMISSION if tracer is None else f"it is traced by pid {tracer}")
            time.sleep(random.uniform(_TURN_S, 10 * _TURN_S))
        if not self._seized:
            raise CannotHold("none of its threads is the driver's")

    def _seize_each(self) -> bool:
        """Whether the kernel let us: not where another tracer was faster."""
        deadline = time.monotonic() + _SEIZE_S
        while True:
            is_late = time.monotonic() > deadline
            fresh = [tid for tid in driver_threads(self._pid) if tid not in self._seized]
            if not fresh:
                return True
            if is_late:
                raise CannotHold(KEEPS_STARTING)
            for tid in fresh:
                with suppress(ProcessLookupError):  # it has ended
                    try:
                        ptrace.request(ptrace.SEIZE, tid, 0, ptrace.TRACE_CLONES)
                    except PermissionError:
                        return False
                    self._seized.add(tid)

    def _continue_stopped(self) -> bool:
        """Continue those that stopped, with their process, for a signal or a new thread; whether any had."""
        found = False
        for tid in tuple(self._seized):
            seen = ptrace.look(tid)
            if seen is None:
                continue
            found = True
            if seen.ended:
                self._seized.discard(tid)
                continue
            with suppress(OSError):  # killed meanwhile
                if seen.started:
                    self._seized.add(ptrace.started_by(tid))
                ptrace.request(ptrace.CONT, tid, 0, seen.signal)
        return found

    def _detach_all(self) -> None:
        """Detach from all: where the process is stopped they stop too, else they run on."""
        for tid in self._seized:
            with suppress(OSError):
                ptrace.request(ptrace.INTERRUPT, tid)
        deadline = time.monotonic() + _LEAVE_S
        while self._seized and time.monotonic() < deadline:
            for tid in tuple(self._seized):
                seen = ptrace.look(tid)
                if seen is None:
                    continue
                with suppress(OSError):
                    ptrace.request(ptrace.DETACH, tid, 0, seen.signal)
                self._seized.discard(tid)
            time.sleep(_TURN_S / 5)


def driver_threads(pid: int) -> list[int]:
    return [tid for tid, stat in _threads(pid).items() if is_driver_thread(stat.name)]


def is_stopped(pid: int) -> bool:
    """Whether no thread of the program itself runs."""
    threads = {tid: stat.state for tid, stat in _threads(pid).items() if not is_driver_thread(stat.name)}
    return bool(threads) and all(
        state in "TZX" or (state == "t" and _is_held_by_parent(pid, tid)) for tid, state in threads.items()
    )


def stop(pid: int, pidfd: int) -> None:
    """Stop the process; raises CannotHold, and lets it run on, where that takes too long."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
    deadline = time.monotonic() + STOP_S
    while True:
        is_late = time.monotonic() > deadline
        if is_stopped(pid):
            return
        if is_late:
            resume(pidfd)
            raise CannotHold("one of its threads does not stop")
        time.sleep(_TURN_S)


def resume(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGCONT)


def tracer_of(pid: int) -> int | None:
    """Who traces one of its threads, a debugger for example; our parent does not count."""
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        for thread in folder.names("task"):
            tracer = _tracer(folder, int(thread))
            if tracer and not _is_parents(tracer):
                return tracer
    return None


def _is_held_by_parent(pid: int, tid: int) -> bool:
    """Whether our parent traces this thread. One whose tracer has just left runs on, and is not held."""
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        tracer = _tracer(folder, tid)
        return bool(tracer) and _is_parents(tracer)
    return False


def _tracer(folder: ProcessFolder, tid: int) -> int:
    return int(folder.status(tid).get(b"TracerPid", b"0"))


def _is_parents(tracer: int) -> bool:
    """The kernel names the thread that traces, not its process."""
    return os.path.exists(f"/proc/{os.getppid()}/task/{tracer}")


def _threads(pid: int) -> dict[int, Stat]:
    found: dict[int, Stat] = {}
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        for name in folder.names("task"):
            stat = folder.stat(int(name))
            if stat is not None:
                found[int(name)] = stat
    return found

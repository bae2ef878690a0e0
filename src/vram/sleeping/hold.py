"""Holds the threads of programs that sleep, so that none runs without its memory, whoever continues it.

A stopped process runs again after SIGCONT: by `fg`, by `kill -CONT`, by a shell that exits. While its memory
is away an ordinary call would kill it. So its own threads are traced for as long as it sleeps: a traced
thread that has stopped runs on only when its tracer says so. SIGCONT then waits, and asks to wake it.
The driver's own threads are left to the checkpoint worker. Where the waker is killed, the kernel stops the
threads as before.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from vram.children import LocalPidHandle
from vram.payloads import ptrace
from vram.payloads.procfs import ProcessFolder, is_driver_thread

# A traced thread that was killed keeps its process from ending until it is reaped.
REAP_S = 0.1
_NO_THREAD = 0x20000000  # of waitpid: only what this thread traces, no children of other threads
_STOP_S = 2.0
_PAUSE_S = 0.0005
_STOPPED = frozenset("Tt")


class CannotTrace(Exception):
    """Why its threads are not held; they are stopped as before."""


class _Job(NamedTuple):
    do: Callable[[], Any]
    done: Callable[[BaseException | None], None]


class ThreadHolder:
    """One thread that traces: the kernel takes requests about a thread only from the one that seized it."""

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def hold(self, handle: LocalPidHandle) -> None:
        """Hold all threads of a stopped process but the driver's. Raises CannotTrace."""
        self._run(lambda: self._hold(handle.pid))

    def release(self, pid: int) -> None:
        """Hold it no longer: its memory is back, or it has ended."""
        self._run(lambda: self._detach(pid))

    def _run(self, do: Callable[[], Any]) -> None:
        ready = threading.Event()
        failed: list[BaseException] = []

        def done(error: BaseException | None) -> None:
            if error is not None:
                failed.append(error)
            ready.set()

        self._jobs.put(_Job(do, done))
        ready.wait()
        if failed:
            raise failed[0]

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=REAP_S if self._held else None)
            except Empty:
                self._reap()
                continue
            try:
                job.do()
                job.done(None)
            except BaseException as error:
                job.done(error)

    def _hold(self, pid: int) -> None:
        if any(state not in _STOPPED for state in _own_threads(pid).values()):
            raise CannotTrace("it is not stopped")
        held = self._held.setdefault(pid, set())
        try:
            while fresh := _own_threads(pid).keys() - held:
                for tid in fresh:
                    with suppress(ProcessLookupError):  # it has ended
                        ptrace.request(ptrace.SEIZE, tid)
                        held.add(tid)
                        _wait_for_stop(tid)
        except OSError as error:
            self._detach(pid)
            raise CannotTrace(error.strerror or str(error)) from error

    def _detach(self, pid: int) -> None:
        for tid in self._held.pop(pid, ()):
            with suppress(OSError):  # it has ended
                try:
                    ptrace.request(ptrace.DETACH, tid)
                except ProcessLookupError:
                    # It had not stopped yet: left traced, it would never run again.
                    ptrace.request(ptrace.INTERRUPT, tid)
                    _wait_for_stop(tid)
                    ptrace.request(ptrace.DETACH, tid)

    def _reap(self) -> None:
        """Let those that were killed end."""
        while True:
            try:
                tid, status = os.waitpid(-1, ptrace.WALL | _NO_THREAD | os.WNOHANG)
            except ChildProcessError:
                break
            if not tid:
                return
            if not os.WIFSTOPPED(status):
                for held in self._held.values():
                    held.discard(tid)
        self._held.clear()


def _own_threads(pid: int) -> dict[int, str]:
    """The threads of the program itself that live, and what they do."""
    found = {}
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        for name in folder.names("task"):
            seen = folder.stat(int(name))
            if seen is not None and not is_driver_thread(seen.name) and seen.state not in "ZX":
                found[int(name)] = seen.state
    return found


def _wait_for_stop(tid: int) -> None:
    """Come back when a seized thread has stopped, or has ended."""
    deadline = time.monotonic() + _STOP_S
    while ptrace.look(tid) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"thread {tid} does not stop")
        time.sleep(_PAUSE_S)


def stop_again(handle: LocalPidHandle) -> None:
    """It was continued by hand: have the kernel stop it where its holder is killed."""
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle.pidfd, signal.SIGSTOP)

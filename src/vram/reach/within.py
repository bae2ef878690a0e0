"""A visit that can be given up: what is read of a process may never come.

Its memory and its program may lie on a file system that does not answer, a network's or one of its
user's own making (FUSE). Whoever reads them then waits in the kernel, where no deadline, no Ctrl-C and
at times not even SIGKILL reaches. So another user's process is visited by a process of ours that can be
left behind, and where none can be forked, and for our own, by a thread: that keeps the deadline, but
the program cannot end before the file system answers. The kernel lets a process go on whose visitor ends.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from signal import SIGINT, SIGKILL, pidfd_send_signal
from threading import Thread
from typing import Any, Generic, TypeVar

from vram import errors, untrusted
from vram.errors import NotReachable, TimedOut, VramError
from vram.host.local.child import Child, fork, may_fork

# A visit that comes to its own deadline still has to take back what it left in the process.
_TAKING_BACK_S = 3.0
_ENDING_S = 0.2
_LONGEST_REPLY = 256 << 20
_SIGNAL_AT_PARENTS_DEATH = 1  # of prctl

Result = TypeVar("Result")

interrupted: ContextVar[int | None] = ContextVar("interrupted", default=None)
"""In a visit's thread: a descriptor that becomes readable when its caller was interrupted."""


def within(seconds: float, pid: int, uid: int, action: Callable[[], Result]) -> Result:
    """Return what *action* returns, or raise what it raises, about *pid*, which is of user *uid*.

    Raises TimedOut where it hangs beyond *seconds*. What it returns must be plain data.
    """
    if uid != os.geteuid() and may_fork():
        return _in_a_process(seconds, pid, action)
    return _in_a_thread(seconds, pid, action)


def _in_a_thread(seconds: float, pid: int, action: Callable[[], Result]) -> Result:
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    running = _Running(action)

    def run() -> None:
        interrupted.set(stop)
        running.run()

    thread = Thread(target=copy_context().run, args=(run,), name="vram-visit", daemon=True)
    thread.start()
    try:
        thread.join(seconds + _TAKING_BACK_S)
    except BaseException:
        os.eventfd_write(stop, 1)
        thread.join(_TAKING_BACK_S)
        raise
    finally:
        if not thread.is_alive():
            os.close(stop)
    if thread.is_alive():
        raise _hangs(pid)
    return running.result()


def _in_a_process(seconds: float, pid: int, action: Callable[[], Result]) -> Result:
    parent = os.getpid()
    child = fork(lambda pipe: _visit(pipe, parent, action))
    until = time.monotonic() + seconds + _TAKING_BACK_S
    try:
        reply = untrusted.receive(child.pipe, nbytes=_LONGEST_REPLY, until=until, end=None)
    except untrusted.Rejected as error:
        if error.code == "late":
            raise _hangs(pid) from error
        raise NotReachable(f"the visit to pid {pid} failed: {error}") from error
    except BaseException:
        _interrupt(child)
        raise
    finally:
        child.hang_up()
        child.end(_ENDING_S)
    try:
        kind, content = pickle.loads(reply)
    except Exception as error:  # nothing of it came, or a part
        raise NotReachable(f"the process that visited pid {pid} was killed", hint="try again") from error
    result: Result = _opened(kind, content)
    return result


def _visit(pipe: int, parent: int, action: Callable[[], Any]) -> None:
    """In the process that may be left behind: nobody is told to go once our caller has died."""
    import ctypes

    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, SIGKILL)
    if os.getppid() != parent:
        return
    running = _Running(action)
    running.run()
    reply = running.packed()
    while reply:
        reply = reply[os.write(pipe, reply) :]


def _interrupt(child: Child) -> None:
    """Let it take back what it has left in the process."""
    pidfd = os.pidfd_open(child.pid)
    try:
        pidfd_send_signal(pidfd, SIGINT)
        child.wait(_TAKING_BACK_S)
    finally:
        os.close(pidfd)


def _opened(kind: str, content: Any) -> Any:
    if kind == "returned":
        return content
    if kind == "refused":
        name, message, hint = content
        raise getattr(errors, name)(message, hint=hint)
    if kind == "interrupted":
        raise KeyboardInterrupt
    raise RuntimeError(f"the visit failed:\n{content}")


def _hangs(pid: int) -> TimedOut:
    return TimedOut(
        f"pid {pid} cannot be read: what its memory or its program lies on does not answer",
        hint="a network or FUSE file system hangs, or the process wants nobody to look into it",
    )


class _Running(Generic[Result]):
    """An action that runs elsewhere, and what comes of it."""

    def __init__(self, action: Callable[[], Result]) -> None:
        self._action = action
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._results.append(self._action())
        except BaseException as error:
            self._error = error

    def result(self) -> Result:
        if self._error is not None:
            raise self._error
        return self._results[0]

    def packed(self) -> bytes:
        """The same for another process."""
        error = self._error
        if error is None:
            return pickle.dumps(("returned", self._results[0]))
        if isinstance(error, VramError):
            return pickle.dumps(("refused", (type(error).__name__, str(error), error.hint)))
        if isinstance(error, KeyboardInterrupt):
            return pickle.dumps(("interrupted", None))
        import traceback

        return pickle.dumps(("failed", "".join(traceback.format_exception(error))))

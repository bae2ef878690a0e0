"""Run something about another process under a deadline, even where a read in the kernel never returns.

The memory and the program of a process may lie on a file system that does not answer: a network's, or one
that its user made (FUSE). A reader then waits in the kernel, where no deadline, no Ctrl-C and at times not
even SIGKILL reaches it. So the work on another user's process runs in a child of ours that can be abandoned.
Where no child can be forked, and for our own processes, it runs in a thread: that keeps the deadline, but our
program cannot end before the file system answers. When a tracer ends, the kernel resumes what it stopped.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from signal import SIGINT, SIGKILL, pidfd_send_signal
from threading import Thread
from typing import Any, TypeVar

from vram import errors, untrusted
from vram.children import Child, fork, may_fork
from vram.errors import NotReachable, TimedOut, VramError
from vram.reach.target_root import sees_our_files

# A run that reaches its own deadline still has to withdraw what it left in the process.
_WITHDRAW_S = 3.0
_ENDING_S = 0.2
_MAX_REPLY_LENGTH = 256 << 20
_SIGNAL_AT_PARENTS_DEATH = 1  # of prctl

Result = TypeVar("Result")

interrupted: ContextVar[int | None] = ContextVar("interrupted", default=None)
"""In the thread of a run: a descriptor that becomes readable when the caller was interrupted."""


def run_with_deadline(seconds: float, pid: int, uid: int, action: Callable[[], Result]) -> Result:
    """Return what *action* returns, or raise what it raises, about *pid*, which is of user *uid*.

    Raises TimedOut where it hangs beyond *seconds*. What it returns must be plain data.
    """
    # A container's root is another user, too, whatever its number.
    if (uid != os.geteuid() or not sees_our_files(pid)) and may_fork():
        return _in_a_process(seconds, pid, action)
    return _in_a_thread(seconds, pid, action)


def _in_a_thread(seconds: float, pid: int, action: Callable[[], Result]) -> Result:
    stop = os.eventfd(0, os.EFD_CLOEXEC)
    results: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        interrupted.set(stop)
        try:
            results.append(action())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=copy_context().run, args=(run,), name="vram-visit", daemon=True)
    thread.start()
    try:
        thread.join(seconds + _WITHDRAW_S)
    except BaseException:
        os.eventfd_write(stop, 1)
        thread.join(_WITHDRAW_S)
        raise
    finally:
        if not thread.is_alive():
            os.close(stop)
    if thread.is_alive():
        raise _hangs(pid)
    if raised:
        raise raised[0]
    return results[0]


def _in_a_process(seconds: float, pid: int, action: Callable[[], Result]) -> Result:
    parent = os.getpid()
    child = fork(lambda pipe: _run_in_child(pipe, parent, action))
    until = time.monotonic() + seconds + _WITHDRAW_S
    try:
        reply = untrusted.receive(child.pipe, nbytes=_MAX_REPLY_LENGTH, until=until, end=None)
    except untrusted.Rejected as error:
        if error.code == "late":
            raise _hangs(pid) from error
        raise NotReachable(f"the request to pid {pid} failed: {error}") from error
    except BaseException:
        _interrupt(child)
        raise
    finally:
        child.hang_up()
        child.end(_ENDING_S)
    try:
        kind, content = pickle.loads(reply)
    except Exception as error:  # nothing of it came, or a part
        raise NotReachable(
            f"vram's process that attached to pid {pid} was killed", hint="try again"
        ) from error
    result: Result = _unpack(kind, content)
    return result


def _run_in_child(pipe: int, parent: int, action: Callable[[], Any]) -> None:
    """In the child that may be abandoned: it ends with our caller, so that no payload starts after that."""
    import ctypes

    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_DEATH, SIGKILL)
    if os.getppid() != parent:
        return
    reply = pickle.dumps(_run_packed(action))
    while reply:
        reply = reply[os.write(pipe, reply) :]


def _run_packed(action: Callable[[], Any]) -> tuple[str, Any]:
    """The result or the error of *action* as plain data, for :func:`_unpack`."""
    try:
        return "returned", action()
    except VramError as error:
        return "refused", (type(error).__name__, str(error), error.hint)
    except KeyboardInterrupt:
        return "interrupted", None
    except BaseException:
        import traceback

        return "failed", traceback.format_exc()


def _interrupt(child: Child) -> None:
    """Let it withdraw what it has left in the process."""
    pidfd = os.pidfd_open(child.pid)
    try:
        pidfd_send_signal(pidfd, SIGINT)
        child.wait(_WITHDRAW_S)
    finally:
        os.close(pidfd)


def _unpack(kind: str, content: Any) -> Any:
    if kind == "returned":
        return content
    if kind == "refused":
        name, message, hint = content
        raise getattr(errors, name)(message, hint=hint)
    if kind == "interrupted":
        raise KeyboardInterrupt
    raise RuntimeError(f"the request failed:\n{content}")


def _hangs(pid: int) -> TimedOut:
    return TimedOut(
        f"reading pid {pid} does not return: the file system of its memory or its program does not answer",
        hint="a network or FUSE file system hangs, or the process blocks being read",
    )

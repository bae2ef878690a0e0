"""ptrace(2): single requests, and what a wait for a traced thread tells.

PTRACE_SEIZE sends no signal. A seized thread belongs to the thread of ours that seized it, and the kernel
lets it go when that thread ends, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import NamedTuple

SEIZE, INTERRUPT, CONT, DETACH = 0x4206, 0x4207, 7, 17
EVENT_MESSAGE = 0x4201
TRACE_CLONES = 1 << 3
"""Of SEIZE: threads that a seized thread starts are seized too."""

WALL = 0x40000000
_CLONE = 3

_ptrace = ctypes.PyDLL(None, use_errno=True).ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


class Seen(NamedTuple):
    """What became of a traced thread: it has ended, or has stopped. ``signal`` is about to be delivered."""

    ended: bool = False
    signal: int = 0
    started: bool = False
    """Whether it stopped because it has started a thread."""


def request(number: int, tid: int, address: int = 0, data: object = 0) -> int:
    """The kernel's answer, mostly 0.

    Raises ProcessLookupError where that thread has ended or is not stopped, PermissionError, OSError.
    """
    pointer = data if isinstance(data, int) else ctypes.addressof(data)  # type: ignore[arg-type]
    answer: int = _ptrace(number, tid, address, pointer)
    if answer >= 0:
        return answer
    code = ctypes.get_errno()
    if code == errno.ESRCH:
        raise ProcessLookupError(code, "no such thread")
    if code == errno.EPERM:
        raise PermissionError(code, "no permission to trace it")
    raise OSError(code, os.strerror(code))


def look(tid: int) -> Seen | None:
    """What became of a seized thread since the last look; None: nothing."""
    try:
        seen, status = os.waitpid(tid, WALL | os.WNOHANG)
    except ChildProcessError:
        return Seen(ended=True)
    if not seen:
        return None
    if not os.WIFSTOPPED(status):
        return Seen(ended=True)
    event = status >> 16
    return Seen(signal=0 if event else os.WSTOPSIG(status), started=event == _CLONE)


def started_by(tid: int) -> int:
    """The thread that a seized one has just started."""
    number = ctypes.c_ulong()
    request(EVENT_MESSAGE, tid, 0, number)
    return number.value

"""Whether a stopped process is wanted by a signal: one waits for it, or SIGCONT was sent to it.

Its files in /proc are kept open and read again and again: they are this process's, and of no later one.
"""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress

from vram.payloads.procfs import ProcessFolder, is_driver_thread

# Signals that do not want the program.
_HARMLESS = sum(
    1 << (number - 1)
    for number in (
        signal.SIGSTOP,
        signal.SIGTSTP,
        signal.SIGTTIN,
        signal.SIGTTOU,
        signal.SIGCHLD,
        signal.SIGWINCH,
        signal.SIGURG,
    )
)
_STOPPED = frozenset(b"TtZX")
_STATE = re.compile(rb"^State:\t(.)", re.MULTILINE)
_PENDING = re.compile(rb"^(?:Sig|Shd)Pnd:\t([0-9a-f]+)", re.MULTILINE)
_NBYTES = 8192


class StoppedProcess:
    """A process that has just been stopped. What a thread of the driver's in it does, which no tracer holds,
    shows whether it was continued."""

    def __init__(self, pid: int) -> None:
        self._files: list[int] = []
        with suppress(OSError):
            self._files.append(_open(f"/proc/{pid}/status"))
            thread = _driver_thread(pid)
            if thread is not None:
                self._files.append(_open(f"/proc/{pid}/task/{thread}/status"))

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()

    def signal(self) -> str:
        """The name of a signal that wants it; nothing where there is none, or where it has ended."""
        for file in self._files:
            try:
                text = os.pread(file, _NBYTES, 0)
            except OSError:
                continue
            pending = 0
            for mask in _PENDING.findall(text):
                pending |= int(mask, 16)
            if pending & ~_HARMLESS:
                return _name((pending & ~_HARMLESS & -(pending & ~_HARMLESS)).bit_length())
            state = _STATE.search(text)
            if state is not None and state[1][0] not in _STOPPED:
                return "SIGCONT"
        return ""


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _driver_thread(pid: int) -> int | None:
    with suppress(OSError), ProcessFolder("/proc", pid) as folder:
        for name in folder.names("task"):
            seen = folder.stat(int(name))
            if seen is not None and is_driver_thread(seen.name):
                return int(name)
    return None


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)

"""A process of our own that does what it is told, call by call, under the experiment's deadline.

The program is ``scenes/puppet.py``: driver calls are made there and nowhere else, so one that
hangs or crashes costs a process that was started for it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from vram.lab.answer import CannotTell
from vram.virtualgpu.scene import PROGRAMS

END_S = 10.0
NOT_SUPPORTED = 801
LINE = 160

LIBRARIES = {"torch": "PyTorch", "cupy": "CuPy", "jax": "JAX", "numba": "Numba", "pycuda": "PyCUDA"}


class Ended(CannotTell):
    """The process ended before it answered."""


class Process:
    """One process of an experiment, held by pidfd from the moment it is named."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self.pidfd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise Ended(f"a process of the experiment ended at once (pid {pid})") from error

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def gone(self, timeout_s: float = END_S) -> bool:
        """Whether it has ended within *timeout_s*; its files are closed by then, reaped or not."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def kill(self) -> float:
        """End it by SIGKILL; return the seconds until it was gone."""
        began = time.monotonic()
        self.signal(signal.SIGKILL)
        if not self.gone():
            raise CannotTell(f"a process of the experiment cannot be ended (pid {self.pid})")
        return time.monotonic() - began

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self.gone()
        os.close(self.pidfd)


class Puppet(Process):
    """The started program. ``ask`` sends one verb and waits for its answer."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "puppet.py")],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C at the terminal is ours to handle, in our order.
            start_new_session=True,
        )
        super().__init__(self._popen.pid)
        self.left_s: Callable[[], float] = lambda: END_S
        self._unread = b""
        self._begun: deque[str] = deque()

    def begin(self, verb: str, *arguments: Any) -> None:
        """Send a verb and do not wait: its answer comes before the next one's."""
        self._say([verb, *arguments])
        self._begun.append(verb)

    def ask(self, verb: str, *arguments: Any) -> Any:
        while self._begun:
            self._hear(self._begun.popleft())
        self._say([verb, *arguments])
        return self._hear(verb)

    def _hear(self, verb: str) -> Any:
        answer = json.loads(self._line(verb))
        if "failed" in answer:
            raise _refusal(answer)
        return answer["value"]

    def tell(self, verb: str) -> None:
        """Send a verb that has no answer: the process ends by it. Wait until it has."""
        self._say([verb])
        if not self.gone(self.left_s()):
            raise CannotTell(f"a process did not end by {verb!r}")

    def close(self) -> None:
        super().close()
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.stdout.close()
        with suppress(subprocess.TimeoutExpired):  # in the kernel for good: nobody can end it
            self._popen.wait(END_S)

    def _say(self, words: list[Any]) -> None:
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(json.dumps(words).encode() + b"\n")
            self._popen.stdin.flush()
        except BrokenPipeError as error:
            raise Ended("a process of the experiment ended early") from error

    def _line(self, verb: str) -> bytes:
        while b"\n" not in self._unread:
            self._unread += self._more(verb)
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _more(self, verb: str) -> bytes:
        assert self._popen.stdout is not None
        poll = select.poll()
        poll.register(self._popen.stdout, select.POLLIN)
        # A forked heir may keep the pipe open after the process itself is gone.
        poll.register(self.pidfd, select.POLLIN)
        ready = poll.poll(max(0.0, self.left_s()) * 1000)
        if not ready:
            raise CannotTell(f"not done by the deadline: {verb!r} did not return")
        chunk = b""
        if any(number != self.pidfd for number, _ in ready):
            chunk = os.read(self._popen.stdout.fileno(), 1 << 16)
        if not chunk:
            raise Ended(f"a process of the experiment ended in {verb!r}")
        return chunk


def _brief(words: str) -> str:
    """The first line: frameworks tell stories in their errors."""
    line = words.strip().partition("\n")[0]
    return line if len(line) <= LINE else line[: LINE - 1] + "…"


def _refusal(answer: Mapping[str, Any]) -> CannotTell:
    words = _brief(str(answer["failed"]))
    if "missing" in answer:
        library = str(answer["missing"]).partition(".")[0]
        return CannotTell(f"{LIBRARIES.get(library, library)} is not installed")
    if answer.get("code") == NOT_SUPPORTED:
        return CannotTell(f"this driver does not support it: {words}")
    return CannotTell(words)

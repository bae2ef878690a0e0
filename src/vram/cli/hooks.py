"""The command of ``vram watch --exec``: one at a time, never through a shell, ended when it takes too long.

Everything happens between readings, in this thread: a hook that hangs holds up nothing, and a reader
that is forked from this process finds one thread.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from vram.cli.terminal import say
from vram.errors import UsageError
from vram.model.change import Change
from vram.python_310 import OWN_GROUP
from vram.report.changes import environment, json_line
from vram.units import counted

MAX_WAITING = 1000
# From SIGTERM to SIGKILL.
GRACE_S = 2.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def read_command(text: str) -> list[str]:
    """Split *text* as a shell would, without running one; refuse a program that cannot be started."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--exec {text!r} cannot be split into words: {error}", hint="check its quotes"
        ) from error
    if not words or not words[0]:
        raise UsageError("--exec needs a command", hint="for example --exec 'logger -t vram'")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--exec: there is no program {words[0]!r} that can be run",
            hint="give its path; for pipes and the like, put them into a script",
        )
    return words


class Hooks:
    """Runs the command, if there is one, for each change, in order; at most MAX_WAITING changes wait."""

    def __init__(self, command: list[str], timeout_s: float) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._waiting: deque[Change] = deque()
        self._dropped = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._event = ""
        self._ends_at = 0.0
        self._is_ending = False

    @property
    def pidfd(self) -> int | None:
        """Readable when the running hook has ended; None where none runs."""
        return self._pidfd if self._process is not None else None

    @property
    def wakes_at(self) -> float | None:
        """When the running hook is to be ended, by the monotonic clock."""
        return self._ends_at if self._process is not None else None

    @property
    def is_idle(self) -> bool:
        return self._process is None and not self._waiting

    def add(self, change: Change) -> None:
        """Have the command run for *change* when those before it are done; ``step`` starts it."""
        if not self._command:
            return
        if len(self._waiting) >= MAX_WAITING:
            if not self._dropped:
                say(
                    f"changes come faster than {self._name} handles them:"
                    f" {MAX_WAITING} wait, further ones are dropped"
                )
            self._dropped += 1
            return
        self._waiting.append(change)

    def step(self) -> None:
        """Collect a hook that has ended, end one that takes too long, start the next."""
        if self.is_idle:
            return
        with _signals_deferred():
            while True:
                if self._process is not None:
                    self._look_after(self._process)
                if self._process is not None or not self._waiting:
                    break
                self._start(self._waiting.popleft())
        if self._dropped and not self._waiting:
            say(f"not handed to {self._name}, which is too slow: {counted(self._dropped, 'change')}")
            self._dropped = 0

    def close(self) -> None:
        """End the running hook; those that wait are not started."""
        left = len(self._waiting) + self._dropped
        self._waiting.clear()
        if self._process is not None:
            with _signals_deferred():
                self._end(signal.SIGTERM)
                select.select([self._pidfd], [], [], GRACE_S)
                self._end(signal.SIGKILL)
                self._process.wait()
                self._forget()
        if left:
            say(f"not handed to {self._name}, since the watch ends: {counted(left, 'change')}")

    @property
    def _name(self) -> str:
        return f"the hook {self._command[0]!r}"

    def _start(self, change: Change) -> None:
        # A file in memory: unlike a pipe it takes the whole text at once, whether the hook reads it or not.
        text = os.memfd_create("vram-change", os.MFD_CLOEXEC)
        try:
            os.write(text, json_line(change))
            os.lseek(text, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                self._command,
                stdin=text,
                # Our own standard output carries changes and nothing else.
                stdout=_standard_error(),
                env={**os.environ, **environment(change)},
                # So that all it starts can be ended with it, and Ctrl-C is ours to handle.
                **OWN_GROUP,
            )
        except OSError as error:
            say(f"{self._name} cannot be started: {error.strerror or error}")
            return
        finally:
            os.close(text)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._event, self._is_ending = change.event, False
        self._ends_at = time.monotonic() + self._timeout_s

    def _look_after(self, process: subprocess.Popen[bytes]) -> None:
        code = process.poll()
        if code is not None:
            if code and not self._is_ending:
                how = f"exit code {code}" if code > 0 else f"ended by signal {-code}"
                say(f"{self._name} failed on {self._event!r}: {how}")
            self._forget()
        elif time.monotonic() >= self._ends_at:
            if not self._is_ending:
                say(f"{self._name} took longer than {self._timeout_s:g} s on {self._event!r}: it is ended")
            self._end(signal.SIGKILL if self._is_ending else signal.SIGTERM)
            self._is_ending, self._ends_at = True, time.monotonic() + GRACE_S

    def _end(self, number: signal.Signals) -> None:
        """Signal the hook and what it started; its number is its own until it is collected."""
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _forget(self) -> None:
        os.close(self._pidfd)
        self._process, self._pidfd = None, -1


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Let signals that end us take effect after the block.

    An exception in the midst of it would leave a hook that is not known, or the lock of its Popen taken.
    They are not blocked, since a hook would inherit that.
    """
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING}
    ours = {number: handler for number, handler in before.items() if callable(handler)}
    for number in ours:
        signal.signal(number, lambda arriving, _: arrived.append(arriving))
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
        for arrival in arrived:
            os.kill(os.getpid(), arrival)


def _standard_error() -> int:
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return subprocess.DEVNULL

"""Programs that are run for a node, as ssh and srun: output within a limit, an end within a deadline."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from vram.fleet.transport import Cancelled, CommandResult, NodeFailed

_PORTION_NBYTES = 1 << 18
_MAX_ERRORS = 8 << 10
_GRACE_S = 2.0


class Programs:
    """Runs programs for several threads. :meth:`cancel` ends all of them, and those that would come."""

    def __init__(self) -> None:
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def cancel(self) -> None:
        """End every program that runs, and let no other one start."""
        os.eventfd_write(self._stop, 1)  # nobody reads it: it stays readable for everybody

    def close(self) -> None:
        os.close(self._stop)

    def run(self, argv: Sequence[str], *, until: float, nbytes: int) -> CommandResult:
        """Run *argv* to its end. Raises NodeFailed where it takes too long or writes too much."""
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Its helpers end with it, and Ctrl-C at the terminal is ours to handle.
                start_new_session=True,
            )
        except OSError as error:
            raise NodeFailed("unreachable", f"{argv[0]} cannot be started: {error.strerror}") from error
        with process:
            watched = _Watched(process, nbytes)
            try:
                watched.watch(self._stop)
                return watched.to_its_end(until)
            except OSError as error:  # we have no descriptor left
                raise NodeFailed("unreachable", f"it cannot be asked: {error.strerror}") from error
            finally:
                watched.close()


class _Watched:
    """A running program, and what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], nbytes: int) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process, self._most = process, nbytes
        self._stop = self._pidfd = -1
        self._out, self._err = process.stdout.fileno(), process.stderr.fileno()
        self._output, self._errors = bytearray(), bytearray()
        self._selector: selectors.BaseSelector | None = None

    def watch(self, stop: int) -> None:
        """Begin to wait for it, and for *stop*."""
        self._stop, self._pidfd = stop, os.pidfd_open(self._process.pid)
        self._selector = selectors.DefaultSelector()
        for descriptor in (self._out, self._err):
            os.set_blocking(descriptor, False)
        for descriptor in (self._out, self._err, self._pidfd, stop):
            self._selector.register(descriptor, selectors.EVENT_READ)

    def to_its_end(self, until: float) -> CommandResult:
        # Its end, and not the end of its output: a master connection of ssh that stays behind
        # (ControlPersist) keeps standard error open.
        assert self._selector is not None
        ended = False
        while not ended:
            ready = {key.fd for key, _ in self._selector.select(max(0.0, until - time.monotonic()))}
            if self._stop in ready:
                raise Cancelled
            if not ready:
                raise NodeFailed("no-answer", "no answer within the deadline")
            ended = self._pidfd in ready
            for descriptor in (self._out, self._err):
                self._read(descriptor, everything=ended)
            if time.monotonic() >= until and not ended:
                raise NodeFailed("no-answer", "no complete answer within the deadline")
        return CommandResult(self._process.wait(), bytes(self._output), bytes(self._errors))

    def _read(self, descriptor: int, *, everything: bool) -> None:
        """What is there to read; all of it once nothing more will come."""
        while True:
            try:
                part = os.read(descriptor, _PORTION_NBYTES)
            except BlockingIOError:
                return
            if not part:
                self._at_end(descriptor)
                return
            self._keep(descriptor, part)
            if not everything:
                return

    def _at_end(self, descriptor: int) -> None:
        assert self._selector is not None
        with suppress(KeyError):
            self._selector.unregister(descriptor)

    def _keep(self, descriptor: int, part: bytes) -> None:
        if descriptor == self._err:
            self._errors += part
            del self._errors[:-_MAX_ERRORS]
            return
        self._output += part
        if len(self._output) > self._most:
            raise NodeFailed("too-large", f"its answer is longer than {self._most >> 20} MiB")

    def close(self) -> None:
        """End it, and what it started, if it still runs."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            # Not reaped yet: the number is still that of the group.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        if self._selector is not None:
            self._selector.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)

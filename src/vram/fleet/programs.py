"""Programs that are run for a node, as ssh and srun: output within a limit, an end within a deadline."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

from vram.children import ChildProgram, start_program
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
        os.eventfd_write(self._stop, 1)  # no thread reads it: it stays readable for all of them

    def close(self) -> None:
        os.close(self._stop)

    def run(self, argv: Sequence[str], *, until: float, nbytes: int) -> CommandResult:
        """Run *argv* to its end. Raises NodeFailed where it takes too long or writes too much."""
        try:
            # In a session of its own: its helpers end with it.
            program = start_program(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise NodeFailed("unreachable", f"{argv[0]} cannot be started: {error.strerror}") from error
        try:
            return self._read_to_end(program, until, nbytes)
        except OSError as error:  # we have no descriptor left
            raise NodeFailed("unreachable", f"it cannot be asked: {error.strerror}") from error
        finally:
            _end(program)

    def _read_to_end(self, program: ChildProgram, until: float, nbytes: int) -> CommandResult:
        # Its end, and not the end of its output: a master connection of ssh that stays behind
        # (ControlPersist) keeps standard error open.
        assert program.stderr is not None
        output, errors = bytearray(), bytearray()
        streams = {program.pipe: output, program.stderr.fileno(): errors}
        ended = False
        with selectors.DefaultSelector() as selector:
            for descriptor in streams:
                os.set_blocking(descriptor, False)
            for descriptor in (*streams, program.pidfd, self._stop):
                selector.register(descriptor, selectors.EVENT_READ)
            while not ended:
                ready = {key.fd for key, _ in selector.select(max(0.0, until - time.monotonic()))}
                if self._stop in ready:
                    raise Cancelled
                if not ready:
                    raise NodeFailed("no-answer", "no answer within the deadline")
                ended = program.pidfd in ready
                for descriptor, written in streams.items():
                    for part in _parts(descriptor, everything=ended):
                        written += part
                        del errors[:-_MAX_ERRORS]
                        if len(output) > nbytes:
                            raise NodeFailed("too-large", f"its answer is longer than {nbytes >> 20} MiB")
                        if not part:
                            with suppress(KeyError):
                                selector.unregister(descriptor)
                if time.monotonic() >= until and not ended:
                    raise NodeFailed("no-answer", "no complete answer within the deadline")
        program.wait(_GRACE_S)
        assert program.exit_code is not None
        return CommandResult(program.exit_code, bytes(output), bytes(errors))


def _parts(descriptor: int, *, everything: bool) -> Iterator[bytes]:
    """What is there to read, all of it with *everything*, else one part; an empty one at its end."""
    part = b"."
    with suppress(BlockingIOError):
        while part:
            part = os.read(descriptor, _PORTION_NBYTES)
            yield part
            if not everything:
                return


def _end(program: ChildProgram) -> None:
    """End it, and what it started, if it still runs."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if program.wait(0.0):
            break
        program.signal_group(number)
        program.wait(_GRACE_S)
    program.hang_up()

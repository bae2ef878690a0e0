"""Run a command in the foreground as if it had been typed there: terminal, signals, exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from vram.errors import UsageError

# What shells answer for a command that is not there, and for one that cannot be run.
NOT_FOUND, CANNOT_RUN, ENDED_BY_SIGNAL = 127, 126, 128

FROM_KEYBOARD = {signal.SIGINT, signal.SIGQUIT}
PASSED_ON = {*FROM_KEYBOARD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
SENT_BY_KERNEL = 0x80  # si_code SI_KERNEL


class CannotStart(UsageError):
    """The command could not be started; the exit code is the one a shell would give."""

    def __init__(self, command: str, error: OSError) -> None:
        missing = isinstance(error, FileNotFoundError)
        reason = "command not found" if missing else (error.strerror or "cannot be run").lower()
        super().__init__(f"{command}: {reason}")
        self.exit_code = NOT_FOUND if missing else CANNOT_RUN  # type: ignore[assignment]


@contextmanager
def signals_held() -> Iterator[set[int]]:
    """Take signals only where :func:`run` waits for them, so that cleaning up always happens."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, nobody could be waited for
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *PASSED_ON})
    try:
        yield {int(number) for number in usual}
    finally:
        # Ctrl-C also reaches us, and may still wait when the command has ended by it.
        while signal.sigtimedwait(PASSED_ON, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int],
    started: Callable[[int], None] | None = None,
) -> int:
    """Run *argv* inside :func:`signals_held`, whose *mask* it gets; return its exit code.

    *started* is told the pid, which stays the command's own until this returns.
    """
    # Python ignores these two; a command expects the usual deadly ones.
    restored = {signal.SIGPIPE, signal.SIGXFSZ}
    try:
        pid = os.posix_spawnp(argv[0], list(argv), environment, setsigmask=mask, setsigdef=restored)
    except OSError as error:
        raise CannotStart(argv[0], error) from error
    if started is not None:
        started(pid)
    code = os.waitstatus_to_exitcode(_wait_for(pid))
    return ENDED_BY_SIGNAL - code if code < 0 else code


def _wait_for(pid: int) -> int:
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        news = signal.sigwaitinfo({signal.SIGCHLD, *PASSED_ON})
        if news.si_signo != signal.SIGCHLD and not _has_it_already(news):
            os.kill(pid, news.si_signo)  # not reaped yet, so the pid is still its own


def _has_it_already(news: signal.struct_siginfo) -> bool:
    """What is typed at the terminal goes to its whole foreground group, the command included."""
    return news.si_signo in FROM_KEYBOARD and news.si_code == SENT_BY_KERNEL

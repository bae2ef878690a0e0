"""Run a command in the foreground as if it had been typed there: terminal, signals, job control, exit code.

The command stays in our process group, so that whatever is typed reaches it from the terminal itself. A
signal that was sent to us alone is passed on. Ctrl-Z stops the command or not, as it decides; we follow.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from vram.errors import UsageError
from vram.interrupts import raise_if_interrupted
from vram.payloads.procfs import read_stat

# What shells answer for a command that is not there, and for one that cannot be run.
NOT_FOUND, CANNOT_RUN, ENDED_BY_SIGNAL = 127, 126, 128

FROM_KEYBOARD = {signal.SIGINT, signal.SIGQUIT}
PASSED_ON = {*FROM_KEYBOARD, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
# By these a terminal stops a job. SIGSTOP is not among them: a process that sends it to the command alone (a
# debugger, a test) will wake the command alone, and we would stay stopped.
STOPS = {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
SENT_BY_KERNEL = 0x80  # si_code SI_KERNEL
_TAKEN = {signal.SIGCHLD, signal.SIGTSTP, *PASSED_ON}


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
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # were it ignored, no child could be waited for
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    try:
        raise_if_interrupted()
        yield {int(number) for number in usual}
    finally:
        # Ctrl-C also reaches us, and may still wait when the command has ended by it.
        while signal.sigtimedwait(_TAKEN - {signal.SIGCHLD}, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int],
    started: Callable[[int], None] | None = None,
) -> int:
    """Run *argv* inside :func:`signals_held`, whose *mask* it gets; return its exit code, 128+N for signal N.

    *started* is told the pid, which stays the command's own until this returns.
    """
    code = os.waitstatus_to_exitcode(wait_status(argv, environment, mask, started))
    return ENDED_BY_SIGNAL - code if code < 0 else code


def wait_status(
    argv: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int],
    started: Callable[[int], None] | None = None,
) -> int:
    """As :func:`run`; return how the command ended, as wait(2) says it."""
    pid = start(argv, environment, mask)
    if started is not None:
        started(pid)
    return wait_for(pid)


def start(argv: Sequence[str], environment: Mapping[str, str], mask: set[int], **options: Any) -> int:
    """Start *argv* and return its pid; *options* are those of posix_spawn."""
    if not argv[0]:
        raise CannotStart("''", FileNotFoundError())
    # Python ignores these two; a command expects the usual deadly ones.
    restored = {signal.SIGPIPE, signal.SIGXFSZ}
    try:
        return os.posix_spawnp(
            argv[0], list(argv), environment, setsigmask=mask, setsigdef=restored, **options
        )
    except OSError as error:
        raise CannotStart(argv[0], error) from error


def end_by_signal(number: int) -> None:
    """End as the command did, so that a shell or a script sees the same. Returns only where that fails."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # its core is of use, ours is not
    with suppress(OSError, ValueError):  # of SIGKILL nothing can be set
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)


def wait_for(pid: int, send: Callable[[int], None] | None = None) -> int:
    """Wait inside :func:`signals_held` until *pid* has ended; return how, as wait(2) says it.

    *send* passes a signal on to a command that is not in our process group, and so gets none from the
    terminal.
    """
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            if os.WSTOPSIG(status) in STOPS:
                _stop_with(pid, os.WSTOPSIG(status))
            continue
        if ended:
            return status
        news = signal.sigwaitinfo(_TAKEN)
        if news.si_signo not in PASSED_ON:
            continue
        if send is not None:
            send(news.si_signo)
        elif not _has_it_already(news):
            os.kill(pid, news.si_signo)  # not reaped yet, so the pid is still its own


def _has_it_already(news: signal.struct_siginfo) -> bool:
    """What is typed at the terminal goes to its whole foreground group, the command included."""
    return news.si_signo in FROM_KEYBOARD and news.si_code == SENT_BY_KERNEL


def _stop_with(pid: int, number: int) -> None:
    """Stop as *pid* did, so that our shell takes the terminal back; `fg` wakes both."""
    # Blocked, it becomes one with that of the terminal which may wait already: else we would stop twice.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    stat = read_stat(pid)
    if stat is not None and stat.state == "T":  # only we were woken
        os.kill(pid, signal.SIGCONT)

"""How tests wait: for an event, up to one deadline for all of them, and never for time.

``PATIENCE_S`` is when a test gives up on what never comes. It is so long that a busy machine does not
reach it, and it is never what a test asserts. It also serves as a deadline of vram's that must not expire.
A deadline that must expire is the test's own, and short.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

PATIENCE_S = 240.0
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.01

Answer = TypeVar("Answer")
Saw = Callable[[], object] | None
"""What to show where it did not happen."""


def until(what: Callable[[], Answer], saw: Saw = None, max_pause_s: float = _MAX_PAUSE_S) -> Answer:
    """Return the first true answer of *what*; fail with its last answer, and with what *saw* returns.

    *max_pause_s* is longer where each question starts a program, which slows down what is waited for.
    """
    end = time.monotonic() + PATIENCE_S
    for pause_s in _pauses(max_pause_s):
        is_last = time.monotonic() > end
        if answer := what():
            return answer
        if is_last:
            break
        time.sleep(pause_s)
    raise AssertionError(_missed(f"it stayed {answer!r}", saw))


async def until_async(
    what: Callable[[], Answer], saw: Saw = None, pause: Callable[[float], Awaitable[None]] | None = None
) -> Answer:
    """`until` in an event loop, which runs on during *pause*: asyncio.sleep, or that of a test's pilot."""
    from asyncio import sleep

    pause = pause or sleep
    end = time.monotonic() + PATIENCE_S
    for pause_s in _pauses():
        is_last = time.monotonic() > end
        if answer := what():
            return answer
        if is_last:
            break
        await pause(pause_s)
    raise AssertionError(_missed(f"it stayed {answer!r}", saw))


def until_readable(source: object, saw: Saw = None) -> None:
    """Come back when a file, a pipe or a socket can be read or has been closed at its other end."""
    poll = select.poll()
    poll.register(source, select.POLLIN)  # type: ignore[arg-type]
    if not poll.poll(PATIENCE_S * 1000):
        raise AssertionError(_missed("nothing to read", saw))


def until_ended(pidfd: int, saw: Saw = None) -> None:
    """Come back when the process of *pidfd* has ended. It may still be a zombie."""
    fields = Path(f"/proc/self/fdinfo/{pidfd}").read_text().split()
    until_readable(pidfd, saw or (lambda: f"pid {fields[fields.index('Pid:') + 1]} runs on"))


def until_gone(pid: int) -> None:
    """Come back when the process *pid* has ended, where nothing but its number is known."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        until_ended(pidfd)
    finally:
        os.close(pidfd)


def has_ended(pidfd: int) -> bool:
    """Whether the process of *pidfd* has ended by now."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


@contextmanager
def must_end() -> Iterator[None]:
    """Interrupt what never ends, where nothing but the code under test would end it. Main thread only."""

    def give_up(*_: object) -> None:
        raise AssertionError(f"it did not end within {PATIENCE_S:g} s")

    usual = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)


def _pauses(max_pause_s: float = _MAX_PAUSE_S) -> Iterator[float]:
    """Short at first: most of what is waited for comes soon."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, max_pause_s)


def _missed(what: str, saw: Saw) -> str:
    seen = "" if saw is None else f"; seen: {saw()}"
    return f"it did not happen within {PATIENCE_S:g} s: {what}{seen}"

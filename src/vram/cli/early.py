"""The driver, being read and woken up before the command line is even parsed.

Processes of their own do it, and this one has its parsing and importing to do meanwhile.
Words that turn out to be wrong cost those processes nothing but their lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.local.checkpoint_start import Started
    from vram.host.local.child import Child

_LOOK_AT_THE_DRIVER = (
    "why",
    "who",
    "inside",
    "check",
    "doctor",
    "snapshot",
    "free",
    "flush",
    "kill",
    "reset",
    "trim",
    "park",
    "borrow",
)
_ASK_IT_TO_MOVE = ("park", "unpark", "borrow")
_LOOK_ELSEWHERE = ("--from", "--help", "-h", "--watch")

_reader: Child | None = None
_worker: Started | None = None


def begin(words: Sequence[str]) -> None:
    """Start what *words* look as if they will need."""
    global _reader, _worker
    if not words or any(word.startswith(_LOOK_ELSEWHERE) for word in words):
        return
    if words[0] in _ASK_IT_TO_MOVE:
        _worker = checkpoint_worker()
    if words[0] in _LOOK_AT_THE_DRIVER:
        _reader = reader()


def take() -> Child | None:
    """Hand over the reader that was started, once."""
    global _reader
    reader, _reader = _reader, None
    return reader


def reader() -> Child | None:
    """The reader that was started, or one that starts now."""
    started = take()
    if started is not None:
        return started
    from vram.host.local import start_reader

    try:
        return start_reader(set())
    except OSError:  # will be met again by the reading itself, and told
        return None


def checkpoint_worker() -> Started | None:
    """The checkpoint worker that was started, once, or one that starts now."""
    global _worker
    started, _worker = _worker, None
    if started is not None:
        return started
    from vram.host.local.checkpoint_start import start_worker

    try:
        return start_worker()
    except OSError:  # will be met again when it is asked
        return None

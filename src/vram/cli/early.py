"""The driver, being read before the command line is even parsed.

A process of its own reads it, and this one has its parsing and importing to do meanwhile.
Words that turn out to be wrong cost that process nothing but its life.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vram.host.local.child import Child

_LOOK_AT_THE_DRIVER = ("why", "who", "check", "snapshot", "free", "kill", "reset", "trim", "park")
_LOOK_ELSEWHERE = ("--from", "--help", "-h", "--watch")

_reader: Child | None = None


def begin(words: Sequence[str]) -> None:
    """Start reading the driver if *words* look as if it will be asked."""
    global _reader
    if (
        words[:1]
        and words[0] in _LOOK_AT_THE_DRIVER
        and not any(w.startswith(_LOOK_ELSEWHERE) for w in words)
    ):
        from vram.host.local.nvml_start import start_reader

        try:
            _reader = start_reader(set())
        except OSError:  # will be met again by the reading itself, and told
            return


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
    from vram.host.local.nvml_start import start_reader

    try:
        return start_reader(set())
    except OSError:  # will be met again by the reading itself, and told
        return None

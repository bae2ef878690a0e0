"""What the service says while it runs: lines on standard error, which systemd's journal takes as they are."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from vram.report.escape import inert

_MAX_LENGTH = 2000
_PIPE_BUF = 4096  # so much goes into a pipe that poll() calls writable


class ServiceLog:
    """One line for each event; foreign text in it is inert. Where nobody reads it, nothing happens."""

    def __init__(self) -> None:
        self._is_journal = _is_journal()

    def error(self, sentence: str) -> None:
        self._write(3, sentence)

    def warning(self, sentence: str) -> None:
        self._write(4, sentence)

    def info(self, sentence: str) -> None:
        self._write(6, sentence)

    def _write(self, level: int, sentence: str) -> None:
        mark = f"<{level}>" if self._is_journal else "vram serve: "
        line = f"{mark}{inert(sentence)[:_MAX_LENGTH]}\n".encode(errors="backslashreplace")
        with suppress(OSError, AttributeError, ValueError):
            number = sys.stderr.fileno()
            # A pipe that nobody empties would stop the service: its line is lost instead.
            if select.select((), (number,), (), 0.0)[1]:
                os.write(number, line[:_PIPE_BUF])


def _is_journal() -> bool:
    """Whether standard error leads to the journal, which then reads the level at the beginning of a line."""
    with suppress(OSError, AttributeError, ValueError):
        about = os.fstat(sys.stderr.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"
    return False

"""Copies the write-ahead log into the file, in a process of its own, which may wait for the disk.

Both have the file open; SQLite's locks keep them apart. Where the process cannot be started, or is too slow,
the log grows to its limit, and the service copies it itself (``Retention.check_log``).
"""

from __future__ import annotations

import os
import sys

from vram.children import Child, interpreter, spawn

_GRACE_S = 1.0


class Checkpointer:
    """Has at most one such process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._child: Child | None = None

    def start(self) -> None:
        """Begin, unless the last one is still at work."""
        if self._child is not None and not self._child.wait(0.0):
            return
        self.close()
        try:
            self._child = spawn(interpreter("vram.history.checkpoint", self._path), _environment())
        except OSError:
            self._child = None

    def close(self) -> None:
        """End the process: what it had not copied stays in the log."""
        child, self._child = self._child, None
        if child is not None:
            child.end(_GRACE_S)
            child.hang_up()


def _environment() -> dict[str, str]:
    """Ours, without what would load a driver or foreign code."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("LD_", "CUDA_", "VRAM_"))
    }


def main() -> None:
    """Run as a program: the argument is the file."""
    import sqlite3

    connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=1.0)
    try:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        connection.close()

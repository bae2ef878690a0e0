"""A trace that is still written, read as it grows: each step costs what is new in it."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterable, Sequence
from glob import escape
from pathlib import Path

from vram.errors import BadTrace
from vram.model.trace import LiveTrace
from vram.trace.analysis import StackTable, ViewBuilder
from vram.trace.native import EVERYTHING, NativeReader
from vram.trace.output import MAGIC
from vram.trace.reader import open_file, require_trace

_LIMIT_NBYTES = 4 << 30
_SETTLED_NS = 50_000_000
"""Records of different threads become visible in any order: they are put in order once they are so old."""


class Follower:
    """The trace in *parts*, or in the parts of *prefix* (``PREFIX.PID.part``), which may appear meanwhile."""

    def __init__(self, prefix: Path | None = None, parts: Iterable[Path] = (), *, points: int = 500) -> None:
        self._prefix = prefix
        self._waiting = list(parts)
        self._known: set[Path] = set()
        self._descriptors: list[int] = []
        self._reader = NativeReader(_LIMIT_NBYTES, points=points, growing=True)
        self._stacks = StackTable(self._reader)
        self.problems: list[str] = []
        """Files that are no traces, each named once."""
        self.close = weakref.finalize(self, _close_all, self._descriptors)

    def advance(self, *, everything: bool = False) -> None:
        """Read what was written since the last call; with *everything*, also what is not settled yet."""
        self._add_files()
        self._reader.index()
        self._reader.run(EVERYTHING if everything else max(0, time.monotonic_ns() - _SETTLED_NS))

    def live(self) -> LiveTrace:
        """What is live now, by stack and by GPU."""
        return ViewBuilder(self._reader, self._stacks).live_trace()

    def _add_files(self) -> None:
        for path in [*self._waiting, *self._found()]:
            if path in self._known:
                continue
            try:
                descriptor = open_file(path)
            except BadTrace as error:
                self._refuse(path, error)
                continue
            # The magic is the last that is written of a header.
            if os.pread(descriptor, len(MAGIC), 0).strip(b"\0") == b"":
                os.close(descriptor)
                continue
            try:
                require_trace(descriptor, path)
            except BadTrace as error:
                os.close(descriptor)
                self._refuse(path, error)
                continue
            self._known.add(path)
            self._descriptors.append(descriptor)
            self._reader.add_file(descriptor)

    def _refuse(self, path: Path, error: BadTrace) -> None:
        self._known.add(path)
        self.problems.append(str(error))

    def _found(self) -> Sequence[Path]:
        if self._prefix is None:
            return ()
        folder, name = self._prefix.parent, escape(self._prefix.name)
        return sorted(folder.glob(f"{name}.*.part"))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

"""Looks that may never come back, such as at a file on a server that is gone: each gets its time, no more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")


class Beside(Generic[T]):
    """*job*, done beside us from now on. One that hangs is left alone: it ends with the process."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._done: list[T] = []
        self._thread = Thread(target=self._run, args=(job,), daemon=True)
        with suppress(RuntimeError):  # no more threads for this user: what cannot be left alone is not begun
            self._thread.start()

    def _run(self, job: Callable[[], T]) -> None:
        with suppress(Exception):  # what fails is as unknown as what hangs, and must not print on its own
            self._done.append(job())

    def result(self, patience_s: float) -> T | None:
        """What it came to; None where it has not, within *patience_s*."""
        if self._thread.ident is not None:
            self._thread.join(patience_s)
        return self._done[0] if self._done else None

"""Work that begins before its result is asked for, in a thread; it pays off for calls into C."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """Runs *job* at once. ``result`` waits for it, and raises what it raised."""

    # threading.Thread would do, but importing threading costs a millisecond of every command.
    def __init__(self, job: Callable[[], T]) -> None:
        self._outcome: list[T | BaseException] = []
        self._failed = False
        self._running = _thread.allocate_lock()
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, (job,))
        except RuntimeError:  # this user may have no more threads: then it is done now
            self._run(job)

    def _run(self, job: Callable[[], T]) -> None:
        try:
            self._outcome.append(job())
        except BaseException as error:
            self._failed = True
            self._outcome.append(error)
        finally:
            self._running.release()

    def result(self) -> T:
        with self._running:
            (outcome,) = self._outcome
        if self._failed and isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[return-value]

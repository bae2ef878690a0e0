"""Work that begins before its result is asked for, in a thread; it pays off for calls into C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Background(Generic[T]):
    """Runs *job* at once. ``result`` waits for it, and raises what it raised."""

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._result: T | None = None
        self._error: BaseException | None = None
        # A daemon: a program that ends does not wait for a result that nobody asks for.
        self._thread = threading.Thread(target=self._run, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # this user may have no more threads: then it is done now
            self._run()

    def _run(self) -> None:
        try:
            self._result = self._job()
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)

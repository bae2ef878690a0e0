"""What Python 3.10 lacks and no older spelling replaces: notes of exceptions, time limits, process groups.

From 3.11 on all of it is Python's own.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from asyncio import Task, TimerHandle
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Any

# ---- notes of exceptions ----


def add_note(error: BaseException, text: str) -> None:
    """``error.add_note(text)``, which shows *text* below the error's traceback.

    3.10 shows it where the error is not caught, unless another program's hook shows such errors. pytest and
    IPython know ``__notes__``; ``traceback`` and ``logging`` do not.
    """
    if sys.version_info >= (3, 11):
        error.add_note(text)
        return
    vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), text]
    show_notes()


def show_notes() -> None:
    """Have Python show notes of errors that nobody catches, where its own hooks show those errors."""
    if sys.version_info >= (3, 11):
        return
    import threading

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show_with_notes
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _show_of_thread


def _show_with_notes(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.__excepthook__(kind, error, trace)
    _print_notes(error)


def _show_of_thread(failed: threading.ExceptHookArgs) -> None:
    from threading import __excepthook__ as usual

    usual(failed)
    _print_notes(failed.exc_value)


def _print_notes(error: BaseException | None) -> None:
    """Those of *error* and of what it was raised from, or while handling."""
    shown: set[int] = set()
    while error is not None and id(error) not in shown:
        shown.add(id(error))
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# ---- time limits of asyncio ----


def timeout(seconds: float) -> AbstractAsyncContextManager[Any]:
    """``asyncio.timeout(seconds)``: a block that takes longer is cancelled, and raises TimeoutError.

    In 3.10 a task that is cancelled in the very moment in which its time is over learns the latter alone:
    a loop that others cancel ends by another sign too.
    """
    if sys.version_info >= (3, 11):
        import asyncio

        return asyncio.timeout(seconds)
    return _Timeout(seconds)


class _Timeout:
    _timer: TimerHandle

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_over = False

    async def __aenter__(self) -> None:
        from asyncio import current_task, get_running_loop

        task = current_task()
        assert task is not None
        self._timer = get_running_loop().call_later(self._seconds, self._end, task)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from asyncio import CancelledError

        self._timer.cancel()
        if self._is_over and isinstance(error, CancelledError):
            raise TimeoutError from error

    def _end(self, task: Task[Any]) -> None:
        self._is_over = True
        task.cancel()


# ---- process groups ----

# For subprocess.Popen: the child leads a process group of its own.
OWN_GROUP: dict[str, Any]
if sys.version_info >= (3, 11):
    OWN_GROUP = {"process_group": 0}
else:
    OWN_GROUP = {"preexec_fn": os.setpgrp}

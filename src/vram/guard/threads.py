"""Threads whose GPU memory is settled when their work ends, also when it ends by an exception.

Device memory belongs to the process: a thread that ends gives nothing back by itself. Here its
garbage is collected, the variables of a failed thread are let go of, caches go back to the
driver, and what then is still in use is named. Raw pointers that nobody freed cannot be freed
by anyone else: they are reported, and `vram.Buffer` is what would have freed them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from vram.guard.registry import Place, current, inside
from vram.guard.scope import OnLeak, Scope, scope
from vram.guard.scoped import name_of

if TYPE_CHECKING:
    from vram.model.leak import Leak


class Thread(threading.Thread):
    """A ``threading.Thread`` that settles its GPU memory at its end; ``leak`` says what it kept.

    Threads that run at the same time are settled together, by the last of them.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._settled = scope(self.name, leak=leak, limit=limit, thread=True)

    def __init_subclass__(cls) -> None:
        # Around whatever `run` is: its frame, and all it had in variables, is gone when we settle.
        if "run" in vars(cls):
            cls.run = _settling(cls.run)  # type: ignore[method-assign, assignment]

    def run(self) -> None:
        _settle_after(self, super().run)

    @property
    def leak(self) -> Leak | None:
        """What the thread kept, when it has ended."""
        return self._settled.leak


class ThreadPoolExecutor(futures.ThreadPoolExecutor):
    """An executor that settles GPU memory after every piece of work.

    A future that failed keeps its exception, and that would keep every variable of the work:
    they are let go of here. Results are the caller's, and do not count as kept; in a scope around
    the caller they do.
    """

    def __init__(
        self, *args: Any, leak: OnLeak = "warn", limit: str | int | None = None, **options: Any
    ) -> None:
        scope(leak=leak, limit=limit)  # what is wrong with them is said here, not in a thread
        super().__init__(*args, **options)
        self._leak, self._limit = leak, limit

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        opened = scope(name_of(function), leak=self._leak, limit=self._limit, thread=True)
        return super().submit(_on_behalf_of, current(), opened, function, *args, **kwargs)


def _settling(run: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(run)
    def settled(self: Thread) -> None:
        _settle_after(self, partial(run, self))

    return settled


def _settle_after(thread: Thread, run: Callable[[], None]) -> None:
    # A subclass's run may call ours: the outermost settles.
    if thread._settled.place is not None:
        run()
        return
    _in_scope(thread._settled, run)


def _on_behalf_of(place: Place | None, /, *work: Any, **kwargs: Any) -> Any:
    with inside(place):
        try:
            return _in_scope(*work, **kwargs)
        finally:
            del work, kwargs


def _in_scope(opened: Scope, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    with opened:
        try:
            return opened.keep(function(*args, **kwargs))
        finally:
            # An error that is kept keeps this frame, and that all the work was given.
            del function, args, kwargs

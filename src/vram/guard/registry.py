"""Which scopes are open at this moment, and which of them run into each other.

Memory is charged to the process, not to a thread. Where scopes of several threads or tasks
overlap, no figure can tell them apart: then they are settled together, by the last to end,
against what was there before the first began.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextvars import ContextVar

from vram.guard.footprint import NOTHING, Footprint, take

_current: ContextVar[Place | None] = ContextVar("vram_scope", default=None)
_lock = threading.Lock()
_open: list[Place] = []
# Left without an exit. A finalizer runs anywhere, also where the lock is held: it only leaves a note.
_abandoned: deque[Place] = deque()


class Crowd:
    """Scopes without a parent, from the first that opened to the last of those that overlap."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before: Footprint = NOTHING
        self.open = 0


_crowd = Crowd()


class Place:
    """Where one scope stands among the others, from its entry to its exit. Made, it is measured."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parent = _open_one(_current.get())
        self.is_disturbed = self.is_over = False
        # Measured under the lock: nobody who joins may allocate before the first has looked.
        with _lock:
            is_first = self._join()
            self.before = take()
            if is_first:
                self.crowd.before = self.before
        _current.set(self)

    def _join(self) -> bool:
        """Whether a new crowd begins with it."""
        global _crowd
        _forget_abandoned()
        if _open:
            ancestors = self._ancestors()
            for stranger in (place for place in _open if place not in ancestors):
                self.is_disturbed = stranger.is_disturbed = True
        is_first = self.parent is None and not _crowd.open
        if is_first:
            _crowd = Crowd()
        self.crowd = _crowd
        if self.parent is None:
            self.crowd.open += 1
            self.crowd.names.append(self.name)
        _open.append(self)
        return is_first

    def leave(self) -> tuple[tuple[str, ...], Footprint] | None:
        """Whom to settle and against what; None where that is another scope's to do, or nobody's."""
        # A generator may end its scope while one that was opened after it goes on.
        if _current.get() is self:
            _current.set(_open_one(self.parent))
        with _lock:
            self._quit()
            _forget_abandoned()
            is_last = self.parent is None and not self.crowd.open
        if not self.is_disturbed:
            return (self.name,), self.before
        return (tuple(dict.fromkeys(self.crowd.names)), self.crowd.before) if is_last else None

    def abandon(self) -> None:
        """Leave from a finalizer: in no particular thread or context, and with nothing to settle."""
        self.is_over = True
        _abandoned.append(self)

    def _quit(self) -> None:
        self.is_over = True
        _open.remove(self)
        if self.parent is None:
            self.crowd.open -= 1

    def _ancestors(self) -> set[Place]:
        found = set()
        place = self.parent
        while place is not None:
            found.add(place)
            place = place.parent
        return found


def _open_one(place: Place | None) -> Place | None:
    """*place* or the nearest around it that has not ended."""
    while place is not None and place.is_over:
        place = place.parent
    return place


def _forget_abandoned() -> None:
    """Called with the lock held."""
    while _abandoned:
        _abandoned.popleft()._quit()


def _renew_lock() -> None:
    """A thread that held it when the process forked does not exist in the child to let it go."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)

"""DOC"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from vram.guard.baseline import Known, OnPurpose
from vram.guard.footprint import NOTHING, Footprint, take

_current: ContextVar[Place | None] = ContextVar("vram_scope", default=None)
# A finalizer of the program's may run while it is held, in the same thread, and open a scope itself.
_lock = threading.RLock()
_open: list[Place] = []
# Left without an exit. A finalizer runs anywhere, also where the lock is held: it only leaves a note.
_abandoned: deque[Place] = deque()

# What there is before there is a context.
NO_ARRAYS = Known()
# A server whose requests always overlap has one crowd for all its life.
MOST_NAMES = 100


class Crowd:
    """Scopes with the same parent, from the first that opened to the last of those that overlap.

    ``known`` are the arrays that lived before the first, where that looked. ``is_mixed``: scopes
    that belong to none of its members ran too, and then no figure tells what the crowd gained.
    """

    before: Footprint = NOTHING
    known: Known | None = None
    open = 0
    is_mixed = False

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.kept = OnPurpose()

    def add(self, name: str) -> None:
        self.open += 1
        if len(self.names) < MOST_NAMES:
            self.names[name] = None


class Around:
    """What scopes can be inside of: another scope, or nothing."""

    crowd_inside: Crowd | None = None


_nothing = Around()


class Place(Around):
    """Where one scope stands among the others, from its entry to its exit. Made, it is measured.

    *look* tells which arrays live; it is asked where there is a context, and by the first of a crowd.
    """

    def __init__(self, name: str, look: Callable[[], Known | None]) -> None:
        self.name = name
        self.parent = _open_one(_current.get())
        self.is_over = False
        # Under the lock: nobody who joins may allocate before the first has measured and looked.
        with _lock:
            is_first = self._join()
            try:
                self.before = take()
                if is_first:
                    self.crowd.before = self.before
                    self.crowd.known = NO_ARRAYS if self.before is NOTHING else look()
            except BaseException:  # a watcher's interruption among them
                self._quit()
                raise
        _current.set(self)

    def _join(self) -> bool:
        """Whether a new crowd begins with it."""
        _forget_abandoned()
        around = self.parent or _nothing
        crowd = around.crowd_inside
        is_first = crowd is None or not crowd.open
        if crowd is None or is_first:
            crowd = around.crowd_inside = Crowd()
        self.crowd = crowd
        self.crowd.add(self.name)
        if _open:
            self._mix()
        _open.append(self)
        return is_first

    def _mix(self) -> None:
        """Strangers of one crowd are settled together; crowds that only one of two is in cannot be."""
        mine = self._line()
        my_crowds = {place.crowd for place in mine}
        for stranger in (place for place in _open if place not in mine):
            for crowd in my_crowds ^ {place.crowd for place in stranger._line()}:
                crowd.is_mixed = True

    def leave(self) -> Crowd | None:
        """Whom to settle; None where that is another scope's to do, or nobody's."""
        # A generator may end its scope while one that was opened after it goes on.
        if _current.get() is self:
            _current.set(_open_one(self.parent))
        with _lock:
            self._quit()
            _forget_abandoned()
            is_last = not self.crowd.open
        return self.crowd if is_last and not self.crowd.is_mixed else None

    def abandon(self) -> None:
        """Leave from a finalizer: in no particular thread or context, and with nothing to settle."""
        self.is_over = True
        _abandoned.append(self)

    def _quit(self) -> None:
        self.is_over = True
        _open.remove(self)
        self.crowd.open -= 1

    def _line(self) -> list[Place]:
        """Itself and all that it is inside of."""
        line: list[Place] = []
        place: Place | None = self
        while place is not None:
            line.append(place)
            place = place.parent
        return line


def current() -> Place | None:
    """The scope that this thread or task is in."""
    return _current.get()


@contextmanager
def inside(place: Place | None) -> Iterator[None]:
    """Let what is opened here be inside *place*, which another thread is in: it had the work done."""
    before = _current.set(place)
    try:
        yield
    finally:
        _current.reset(before)


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
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)

"""Which scopes are open at this moment, and which of them run into each other.

Memory is charged to the process, not to a thread. Where scopes of several threads or tasks
overlap, no figure can tell them apart: then they are settled together, by the last to end,
against what was there before the first began.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING

from vram.guard.footprint import NOTHING, Footprint

if TYPE_CHECKING:
    from vram.guard.scope import Scope

_current: ContextVar[Scope | None] = ContextVar("vram_scope", default=None)
_lock = threading.Lock()
_open: list[Scope] = []


class Crowd:
    """Scopes without a parent that were open at the same time, all of them one after the other."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.before: Footprint = NOTHING
        self.open = 0


_crowd = Crowd()


class Place:
    """Where one scope stands among the others, from its entry to its exit."""

    def __init__(self, scope: Scope) -> None:
        self.parent = _current.get()
        self.disturbed = False
        with _lock:
            self._join(scope)
        _current.set(scope)

    def _join(self, scope: Scope) -> None:
        global _crowd
        ancestors = {id(each) for each in _ancestors(self.parent)}
        for other in _open:
            if id(other) not in ancestors:
                self.disturbed = True
                if other.place is not None:
                    other.place.disturbed = True
        if self.parent is None and not _crowd.open:
            _crowd = Crowd()
        self.crowd = _crowd
        if self.parent is None:
            self.crowd.open += 1
            self.crowd.names.append(scope.name)
        _open.append(scope)

    def measured(self, before: Footprint) -> None:
        """Tell the crowd what was there before its first scope began."""
        if self.parent is None and len(self.crowd.names) == 1:
            self.crowd.before = before

    def leave(self, scope: Scope, before: Footprint) -> tuple[tuple[str, ...], Footprint] | None:
        """Whom to settle and against what; None where that is another scope's to do, or nobody's."""
        _current.set(self.parent)
        with _lock:
            _open[:] = [other for other in _open if other is not scope]
            if self.parent is None:
                self.crowd.open -= 1
        if not self.disturbed:
            return (scope.name,), before
        if self.parent is not None or self.crowd.open:
            return None
        return tuple(dict.fromkeys(self.crowd.names)), self.crowd.before


def _ancestors(scope: Scope | None) -> list[Scope]:
    found = []
    while scope is not None:
        found.append(scope)
        scope = scope.place.parent if scope.place else None
    return found

"""Which arrays lived at one moment, told apart from those that got their place in memory later."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


class _Nobody:
    pass


# A reference whose object is gone.
_NOBODY: weakref.ref[Any] = weakref.ref(_Nobody())


class Known:
    """Keeps no array alive, and is asked ``array in known``."""

    def __init__(self, arrays: Iterable[object] = ()) -> None:
        self._seen = {id(each): weak(each) for each in arrays}

    def __contains__(self, array: object) -> bool:
        # An ``id`` alone is soon another's: Python gives a freed object's place to the next.
        seen = self._seen.get(id(array), _NOBODY)
        return seen is None or seen() is array


def weak(array: object) -> weakref.ref[Any] | None:
    """None for those that know no weak references."""
    try:
        return weakref.ref(array)
    except TypeError:
        return None

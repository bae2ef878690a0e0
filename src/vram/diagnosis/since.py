"""What is remembered of each hold from reading to reading: since when it is known, or under which name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Generic, NamedTuple, TypeVar

from vram.model.hold import Hold

Value = TypeVar("Value")


class Known(NamedTuple, Generic[Value]):
    """A hold as the last reading showed it, and what is remembered of it."""

    hold: Hold
    value: Value


class HoldMemory(Generic[Value]):
    """The holds of the last reading, each with a value that stays with it while holders come and go.

    Nothing here grows with time: a hold that a reading no longer shows is forgotten, unless it lies on a GPU
    that did not answer.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], list[Known[Value]]] = {}

    def update(
        self,
        holds: Iterable[Hold],
        value: Callable[[Hold, Known[Value] | None], Value],
        silent: Collection[int] = (),
    ) -> None:
        """Take a reading in which the GPUs numbered *silent* did not answer.

        *value* is asked for each hold, with what was known of it before. Where one hold became two, both are
        told what was known of it.
        """
        found: dict[tuple[object, ...], list[Known[Value]]] = {}
        for hold in holds:
            found.setdefault(hold.key, []).append(Known(hold, value(hold, self.find(hold))))
        for key, same in self._known.items():
            for each in same:
                is_shown = any(each.hold.is_same(other.hold) for other in found.get(key, ()))
                if not is_shown and not set(silent).isdisjoint(each.hold.gpus):
                    found.setdefault(key, []).append(each)
        self._known = found

    def find(self, hold: Hold) -> Known[Value] | None:
        """What is known of *hold*; None where it is new."""
        return next((each for each in self._known.get(hold.key, ()) if each.hold.is_same(hold)), None)

    def clear(self) -> None:
        self._known.clear()

"""The ways to objects, kept as links and numbers alone; a way is put into words when somebody reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..record import Struct
from .words import Words, extended

if TYPE_CHECKING:
    from .words import Link


class Holder(Struct, frozen=True, gc=False):
    """One way in which an object is kept, as a person would say it.

    ``kind`` is what keeps it in the end: cell, output, module, frame, exception, thread,
    closure, generator; cycle (nothing but itself: the collector frees it), native (nothing that
    Python can see) or unknown (the search was cut short).
    """

    text: str
    kind: str

    def __str__(self) -> str:
        return self.text


UNKNOWN = Holder("not found in the time given", "unknown")


class Trails:
    """From each object, by its former ``id``, up to a name; holds no object that it met."""

    def __init__(self) -> None:
        self.up: dict[int, int] = {}
        self.links: dict[int, Link] = {}
        self.was_cut = False
        self.told: dict[int, Holder] = {}
        self._words: dict[int, Words] = {}

    def holder(self, key: int) -> Holder:
        told = self.told.get(key)
        if told is not None:
            return told
        if key not in self.links:
            return UNKNOWN
        words = self.words(key)
        return Holder(words.text(), words.kind)

    def words(self, key: int) -> Words:
        """What leads to *key*, in words; those of the objects above it are kept, since many share them."""
        way, at = [], key
        while at not in self._words and type(self.links[at]) is not Words:
            way.append(at)
            at = self.up[at]
        words = self._words.get(at) or self.links[at]
        assert isinstance(words, Words)
        for step in reversed(way):
            words = extended(words, self.links[step])
            if step != key:
                self._words[step] = words
        return words

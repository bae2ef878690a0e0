"""What a scope gained on the GPU and did not free, as plain data."""

from __future__ import annotations

from msgspec import Struct

from vram.deprecation import warn_renamed


class ScopeNote(str):
    """A note on a scope: text for people, and a ``code`` for programs.

    The codes say why a gain could not be checked: ``graph-capture`` (a framework or a capture objected),
    ``context-inside`` (the context was made inside the scope) or ``mixed`` (other scopes ran meanwhile).
    """

    __slots__ = ("code",)
    code: str

    @classmethod
    def of(cls, code: str, text: str) -> ScopeNote:
        note = cls(text)
        note.code = code
        return note


class Gain(Struct, frozen=True):
    """Bytes in use at the end beyond those at the beginning, in one framework or outside all of them."""

    where: str
    nbytes: int


class LeakedArray(Struct, frozen=True, kw_only=True):
    """One live GPU array that did not exist at the beginning, and the reference that holds it, as text."""

    what: str
    nbytes: int
    holder: str

    @property
    def keeper(self) -> str:  # old name
        """Old name of ``holder``."""
        warn_renamed("keeper", "holder")  # old name
        return self.holder


class EqualArrays(Struct, frozen=True, kw_only=True):
    """Arrays of one kind and size, in one container: ``holder`` has the span of their positions."""

    count: int
    each_nbytes: int
    what: str
    holder: str

    @property
    def nbytes(self) -> int:
        return self.count * self.each_nbytes


class Leak(Struct, frozen=True, kw_only=True):
    """The leak of one scope. ``names`` are several where scopes ran at the same time. ``arrays`` are the
    largest ones, each for itself; ``groups`` has equal ones together, and with them more of them."""

    names: tuple[str, ...]
    gains: tuple[Gain, ...]
    arrays: tuple[LeakedArray, ...] = ()
    groups: tuple[EqualArrays, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(gain.nbytes for gain in self.gains)

    @property
    def kept(self) -> tuple[LeakedArray, ...]:
        """Old name of ``arrays``."""
        warn_renamed("kept", "arrays")
        return self.arrays

"""What a piece of work gained on the GPU and did not give back, in plain data."""

from __future__ import annotations

from msgspec import Struct


class Gain(Struct, frozen=True):
    """Bytes in use at the end beyond those at the beginning, in one framework's hands or outside all."""

    where: str
    nbytes: int


class Kept(Struct, frozen=True, kw_only=True):
    """One live GPU array that was not there at the beginning, and what keeps it, in words."""

    what: str
    nbytes: int
    keeper: str


class Leak(Struct, frozen=True, kw_only=True):
    """The account of one scope. ``names`` are several where scopes ran at the same time."""

    names: tuple[str, ...]
    gains: tuple[Gain, ...]
    kept: tuple[Kept, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(gain.nbytes for gain in self.gains)

"""What an experiment hands back, and how sizes are weighed: plain judgement, nothing of the machine."""

from __future__ import annotations

from msgspec import Struct

from vram.model.lab import Figure, Unit
from vram.units import MIB, size

CONTEXT_ALLOWANCE = 768 * MIB
"""More than a context took on any GPU seen so far: 527 MiB on an H200."""

NEAR = 8 * MIB
"""Readings wander by so much: page tables and the driver's own bookkeeping."""

MOST, LEAST = 0.9, 0.1


class CannotTell(Exception):
    """The experiment cannot be carried out, or shows nothing; the text says why."""


class Takes(Struct, frozen=True):
    """The most that an experiment may have in use at once: allocations, and contexts besides."""

    nbytes: int = 0
    contexts: int = 1

    @property
    def total(self) -> int:
        return self.nbytes + self.contexts * CONTEXT_ALLOWANCE


class Answer(Struct, frozen=True):
    """Whether the claim holds here (None: it shows neither), and the figures that decided."""

    holds: bool | None
    because: str
    figures: tuple[Figure, ...] = ()


def figure(name: str, value: float, unit: Unit = "bytes") -> Figure:
    return Figure(name, value, unit)


def mostly(nbytes: int, whole: int) -> bool | None:
    """Whether *nbytes* are nearly all of *whole* (True), hardly any (False), or neither (None)."""
    if nbytes >= MOST * whole:
        return True
    return False if nbytes <= max(LEAST * whole, NEAR) else None


def weighed(nbytes: int, whole: int, words: str, *, claimed: bool = True) -> Answer:
    """The answer to a claim that nearly all of *whole* is so (or with *claimed* False: hardly any)."""
    share = mostly(nbytes, whole)
    because = f"{of(nbytes, whole)} {words}"
    figures = (figure(words, nbytes), figure("of", whole))
    return Answer(None if share is None else share is claimed, because, figures)


def of(nbytes: int, whole: int) -> str:
    """The two sizes in words, as they were read; a little less than nothing is nothing."""
    return f"{size(0 if -NEAR < nbytes < 0 else nbytes)} of {size(whole)}"

"""A claim and the function that tests it: the decorator, what it returns, and how sizes are judged.

@claim("kill-nine", TOPIC, takes=Takes(256 * MIB))
def kill_nine(experiment: Experiment) -> Conclusion:
    \"\"\"kill -9 leaves GPU memory behind that stays used

    Source: where it is said. Method and Reading are headings of their own: the docstring is the page.
    \"\"\"
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from vram.model.lab import Figure, LabClaim, Unit
from vram.pages import manual_page
from vram.units import MIB, size

if TYPE_CHECKING:
    from vram.lab.experiment import Experiment

CONTEXT_ALLOWANCE = 768 * MIB
"""More than a context took on any GPU measured so far: 527 MiB on an H200."""

NEAR = 8 * MIB
"""Readings vary by so much: page tables and the driver's own bookkeeping."""

NEARLY_ALL, NEARLY_NOTHING = 0.9, 0.1
OK = 0
"""The driver's answer to a call that succeeded."""

DEADLINE_S = 20.0
WITH_FRAMEWORK_S = 60.0


class CannotTell(Exception):
    """The experiment cannot be carried out, or shows nothing; the text says why."""


class Takes(Struct, frozen=True):
    """The most that an experiment may have in use at once: allocations, and contexts besides."""

    nbytes: int = 0
    contexts: int = 1

    @property
    def total(self) -> int:
        return self.nbytes + self.contexts * CONTEXT_ALLOWANCE


class Conclusion(Struct, frozen=True):
    """Whether the claim holds here (None: it shows neither), and the figures that decided."""

    holds: bool | None
    because: str
    figures: tuple[Figure, ...] = ()

    def and_later(self, nbytes: int, text: str, **figures: int) -> Conclusion:
        """Add what was in use at a later stage; a figure's name has spaces for its underscores."""
        named = tuple(Figure(name.replace("_", " "), value, "bytes") for name, value in figures.items())
        return Conclusion(self.holds, f"{self.because}, {size(max(0, nbytes))} {text}", named)


Measure = Callable[["Experiment"], Conclusion]


class DefinedClaim(Struct, frozen=True):
    """A claim with what its experiment needs, and the function that carries it out.

    ``library`` is what its first worker imports; "" is nothing. ``fails_kernels``: it makes a kernel fail,
    which the driver logs.
    """

    name: str
    topic: str
    takes: Takes
    deadline_s: float
    library: str
    fails_kernels: bool
    measure: Measure

    def describe(self) -> LabClaim:
        """The claim as its page has it."""
        page = manual_page(self.measure.__doc__)
        claim, *parts = re.split(r"^(\w+)\n-{3,}$", page, flags=re.MULTILINE)
        sections = {
            title: " ".join(body.split()) for title, body in zip(parts[::2], parts[1::2], strict=True)
        }
        return LabClaim(
            name=self.name,
            topic=self.topic,
            # Python -OO strips docstrings, and with them the pages.
            claim=claim.strip() or self.name,
            source=sections.get("Source", ""),
            method=sections.get("Method", ""),
            reading=sections.get("Reading", ""),
            takes_bytes=self.takes.total,
            deadline_s=self.deadline_s,
            fails_kernels=self.fails_kernels,
            page=page,
        )


DEFINED: dict[str, DefinedClaim] = {}
"""Every claim whose module is imported, in the order of their definition."""


def claim(
    name: str,
    topic: str,
    *,
    takes: Takes,
    deadline_s: float = DEADLINE_S,
    library: str = "",
    fails_kernels: bool = False,
) -> Callable[[Measure], Measure]:
    """Define a claim: the function's docstring is its page, its body carries out the experiment."""

    def define(measure: Measure) -> Measure:
        if name in DEFINED:
            raise ValueError(f"two claims are named {name!r}")
        DEFINED[name] = DefinedClaim(name, topic, takes, deadline_s, library, fails_kernels, measure)
        return measure

    return define


# ---- judging sizes ----


def figure(name: str, value: float, unit: Unit = "bytes") -> Figure:
    return Figure(name, value, unit)


def mostly(nbytes: int, whole: int) -> bool | None:
    """Whether *nbytes* are nearly all of *whole* (True), hardly any (False), or neither (None)."""
    if nbytes >= NEARLY_ALL * whole:
        return True
    return False if nbytes <= max(NEARLY_NOTHING * whole, NEAR) else None


def judge(nbytes: int, whole: int, text: str, *, claimed: bool = True) -> Conclusion:
    """Conclude on a claim that nearly all of *whole* is so (or with *claimed* False: hardly any)."""
    share = mostly(nbytes, whole)
    because = f"{of(nbytes, whole)} {text}"
    figures = (figure(text, nbytes), figure("of", whole))
    return Conclusion(None if share is None else share is claimed, because, figures)


def of(nbytes: int, whole: int) -> str:
    """The two sizes as text, as they were read; a little less than nothing is nothing."""
    return f"{size(0 if -NEAR < nbytes < 0 else nbytes)} of {size(whole)}"

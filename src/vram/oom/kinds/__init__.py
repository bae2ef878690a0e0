"""The kinds of out-of-memory, by topic. A kind is a function under :func:`kind`; its docstring is its page.

Their order is in :mod:`vram.oom.judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vram.model.oom import Judgement, OomKind, OomReading
from vram.oom.sums import Sums

Judge = Callable[[OomReading, Sums], Judgement | None]


class Kind(NamedTuple):
    """An id that never changes, a title, and a function that judges; None where it is another kind."""

    id: OomKind
    title: str
    judge: Judge

    @property
    def page(self) -> str | None:
        """Its page of ``vram explain``; None under -OO, which strips docstrings."""
        from inspect import cleandoc

        text = self.judge.__doc__
        return f"{cleandoc(text)}\n" if text else None


def kind(name: OomKind, title: str) -> Callable[[Judge], Kind]:
    """Make a function that judges by figures a kind."""
    return lambda judge: Kind(name, title, judge)

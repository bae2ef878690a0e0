"""The kinds of out-of-memory, by topic. A kind is a function under :func:`kind`; its docstring is its page.

Their order is in :mod:`vram.oom.judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vram.model.finding import Remedy
from vram.model.oom import Certainty, Judgement, OomKind, OomMessage, Working
from vram.oom.sums import Sums
from vram.pages import manual_page

Judge = Callable[[OomMessage, Sums], Judgement | None]


class Kind(NamedTuple):
    """An id that never changes, a title, and a function that judges; None where it is another kind."""

    id: OomKind
    title: str
    judge: Judge

    def conclude(
        self,
        certainty: Certainty,
        cause: str,
        *,
        title: str = "",
        workings: tuple[Working, ...] = (),
        missing: tuple[str, ...] = (),
        remedies: tuple[Remedy, ...] = (),
    ) -> Judgement:
        """Judge that it is this kind; *title* where it says more than the kind's own."""
        return Judgement(
            kind=self.id,
            certainty=certainty,
            title=title or self.title,
            cause=cause,
            workings=workings,
            missing=missing,
            remedies=remedies,
        )

    @property
    def page(self) -> str | None:
        """Its page of ``vram explain``; None under -OO, which strips docstrings."""
        text = manual_page(self.judge.__doc__)
        return f"{text}\n" if text else None


def kind(name: OomKind, title: str) -> Callable[[Judge], Kind]:
    """Make a function that judges by figures a kind."""
    return lambda judge: Kind(name, title, judge)

"""The smallest choice that frees enough: least harm first, and nothing that the others make superfluous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar


class Choosable(Protocol):
    """Something that frees ``nbytes`` (None: unknown) by acting on ``pids``."""

    @property
    def nbytes(self) -> int | None: ...
    @property
    def pids(self) -> frozenset[int]: ...


T = TypeVar("T", bound=Choosable)


def fewest(
    options: Sequence[T],
    goal: int,
    *,
    harm: Callable[[T], Any],
    excludes: Callable[[T, T], bool] = lambda chosen, other: False,
) -> tuple[T, ...]:
    """Choose from *options* until *goal* is reached, or until none is left; least *harm* first.

    Of equal harm: the smallest that is enough, else the largest, and then on. *excludes* says that the
    second is no option any more once the first is chosen.
    """
    chosen: list[T] = []
    pool = list(options)
    left = goal
    while left > 0 and pool:
        least = min(map(harm, pool))
        equal = [each for each in pool if harm(each) == least]
        enough = [each for each in equal if _nbytes(each) >= left]
        if enough:
            best = min(enough, key=lambda each: (len(each.pids), _nbytes(each), sorted(each.pids)))
        else:
            best = max(equal, key=lambda each: (_nbytes(each), -len(each.pids)))
        chosen.append(best)
        pool = [each for each in pool if each is not best and not excludes(best, each)]
        left -= _nbytes(best)
    for each in sorted(chosen, key=harm, reverse=True):
        if sum(map(_nbytes, chosen)) - _nbytes(each) >= goal:
            chosen.remove(each)
    return tuple(sorted(chosen, key=harm))


def _nbytes(option: Choosable) -> int:
    return option.nbytes or 0

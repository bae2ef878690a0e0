"""The smallest choice that frees enough: least harm first, and nothing that the others make superfluous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from vram.model.plan import Step, StepKind
from vram.reclaim.actions import GENTLE


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


# ---- for a plan: what is chosen on one GPU ----


class Option(Struct, frozen=True):
    """Steps that only make sense together, and what they surely free; None where that is unknown.

    ``most`` is what they can free at most.
    """

    kind: StepKind
    steps: tuple[Step, ...]
    most: int = 0
    named: bool = False

    @property
    def nbytes(self) -> int | None:
        known = [step.predicted_bytes for step in self.steps if step.predicted_bytes is not None]
        return sum(known) if known else None

    @property
    def pids(self) -> frozenset[int]:
        return frozenset(step.target.process.pid for step in self.steps if step.target)

    @property
    def harms(self) -> bool:
        """Whether it interrupts or ends a process that works."""
        return self.kind == "park" or (self.kind == "kill" and self.named)


class Selection(Struct, frozen=True):
    """What was chosen for one GPU. ``reaches``: what is known of it adds up to the goal; ``may_reach``:
    with what cannot be known beforehand it could."""

    gpu: int
    goal: int
    options: tuple[Option, ...]
    reaches: bool
    may_reach: bool = False

    @property
    def nbytes(self) -> int:
        return sum(option.nbytes or 0 for option in self.options)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Least harm first: who works is touched only where the rest was not enough."""
        return tuple(step for option in sorted(self.options, key=_rank) for step in option.steps)

    def cost(self) -> tuple[int, ...]:
        """Least harm to people first, then fewest processes, then fewest bytes more than needed."""
        harmed = sum(len(each.steps) for each in self.options if each.harms)
        unsure = 0 if self.reaches else 1 if self.may_reach else 2
        steps = sum(len(each.steps) for each in self.options)
        # Where no plan surely reaches the goal, the one that comes nearest is taken.
        return (unsure, harmed, steps, self.nbytes if self.reaches else -self.nbytes, self.gpu)


def smallest(gpu: int, options: Sequence[Option], goal: int) -> Selection:
    """Choose from *options* what reaches *goal* with the least harm."""
    known = [each for each in options if each.nbytes]
    harmless = [each for each in known if not each.harms]
    if _sum(harmless) >= goal:
        return Selection(gpu, goal, fewest(harmless, goal, harm=_rank, excludes=_excludes), reaches=True)
    # Who cannot say what it only caches is asked before anybody who works is harmed: the rest is done only
    # where it is still needed.
    unknown = tuple(each for each in options if each.nbytes is None)
    if _sum(known) >= goal:
        chosen = fewest(known, goal, harm=_rank, excludes=_excludes)
        return Selection(gpu, goal, (*unknown, *chosen), reaches=True)
    counted = frozenset(pid for each in known for pid in each.pids)
    most = _sum(known) + sum(each.most for each in unknown if not each.pids & counted)
    may_reach = bool(unknown) and most >= goal
    return Selection(gpu, goal, (*unknown, *known), reaches=False, may_reach=may_reach)


def _sum(options: Sequence[Option]) -> int:
    return sum(each.nbytes or 0 for each in options)


def _rank(option: Option) -> tuple[bool, int]:
    """Leftovers, which nothing uses, what servers release, caches; of those at work, parked before ended."""
    order = ("park", "kill") if option.harms else ("kill", "release", "trim", "reset")
    return option.harms, order.index(option.kind)


def _excludes(chosen: Option, other: Option) -> bool:
    """One process is parked or terminated, not both."""
    return other.kind not in GENTLE and bool(other.pids & chosen.pids)

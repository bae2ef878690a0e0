"""The smallest plan that reaches a size: least harmful actions first, and no step that the others spare."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vram.model.plan import Step, StepKind


class Option(Struct, frozen=True):
    """Steps that only make sense together, and what they surely give back; None where that is unknown.

    ``most`` is what they can give back at most.
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
    options: tuple[Option, ...]
    reaches: bool
    may_reach: bool = False

    @property
    def nbytes(self) -> int:
        return sum(option.nbytes or 0 for option in self.options)

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
        return Selection(gpu, _fewest(harmless, goal), reaches=True)
    # Who cannot say what it only caches is asked before anybody who works is harmed: the rest is done only
    # where it is still needed.
    unknown = tuple(each for each in options if each.nbytes is None)
    if _sum(known) >= goal:
        return Selection(gpu, (*unknown, *_fewest(known, goal)), reaches=True)
    counted = frozenset(pid for each in known for pid in each.pids)
    most = _sum(known) + sum(each.most for each in unknown if not each.pids & counted)
    return Selection(gpu, (*unknown, *known), reaches=False, may_reach=bool(unknown) and most >= goal)


def _sum(options: Sequence[Option]) -> int:
    return sum(each.nbytes or 0 for each in options)


def _rank(option: Option) -> tuple[bool, int]:
    """Caches, then leftovers; of those who work, parked before ended."""
    order = ("park", "kill") if option.harms else ("trim", "kill", "reset")
    return option.harms, order.index(option.kind)


def _fewest(options: Sequence[Option], goal: int) -> tuple[Option, ...]:
    """Take the least harmful: the smallest that is enough, else the largest; then drop what is spare."""
    chosen: list[Option] = []
    left = goal
    pool = list(options)
    while left > 0:
        first = min(map(_rank, pool))
        rank = [each for each in pool if _rank(each) == first]
        enough = [each for each in rank if (each.nbytes or 0) >= left]
        if enough:
            best = min(enough, key=lambda each: (len(each.steps), each.nbytes or 0, sorted(each.pids)))
        else:
            best = max(rank, key=lambda each: (each.nbytes or 0, -len(each.steps)))
        chosen.append(best)
        # One process is parked or ended, not both.
        pool = [
            each for each in pool if each is not best and (each.kind == "trim" or not each.pids & best.pids)
        ]
        left -= best.nbytes or 0
        if not pool:
            break
    for option in sorted(chosen, key=_rank, reverse=True):
        spare = sum(each.nbytes or 0 for each in chosen) - (option.nbytes or 0)
        if spare >= goal:
            chosen.remove(option)
    return tuple(sorted(chosen, key=_rank))

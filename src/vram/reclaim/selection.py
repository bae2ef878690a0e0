"""The smallest plan that reaches a size: least harmful actions first, and no step that the others spare."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from vram.model.plan import Step, StepKind


class Option(Struct, frozen=True):
    """Steps that only make sense together, and what they surely give back; None where that is unknown."""

    kind: StepKind
    steps: tuple[Step, ...]
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
    """What was chosen for one GPU. ``reaches``: what is known of it adds up to the goal."""

    gpu: int
    options: tuple[Option, ...]
    reaches: bool

    @property
    def nbytes(self) -> int:
        return sum(option.nbytes or 0 for option in self.options)

    def cost(self) -> tuple[int, ...]:
        """Least harm to people first, then fewest processes, then fewest bytes more than needed."""
        harmed = sum(len(each.steps) for each in self.options if each.harms)
        unsure = 0 if self.reaches else 1
        steps = sum(len(each.steps) for each in self.options)
        # Where no plan surely reaches the goal, the one that comes nearest is taken.
        return (unsure, harmed, steps, self.nbytes if self.reaches else -self.nbytes, self.gpu)


def smallest(gpu: int, options: Sequence[Option], goal: int) -> Selection:
    """Choose from *options*, which are in the order of their harm."""
    known = [each for each in options if each.nbytes]
    for last in range(1, len(known) + 1):
        # Only as many kinds of action as are needed: parks are not looked at where leftovers do.
        allowed = [each for each in known if _rank(each) <= _rank(known[last - 1])]
        if sum(each.nbytes or 0 for each in allowed) >= goal:
            return Selection(gpu, _fewest(allowed, goal), reaches=True)
    unknown = [each for each in options if each.nbytes is None]
    # Those that cannot say what they have go first: the rest is only done if it is still needed.
    return Selection(gpu, (*unknown, *known), reaches=False)


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

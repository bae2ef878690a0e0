"""Who makes room for a program that is wanted: decided from values alone; nothing is moved here.

The one that was used least recently goes first. None goes that works, or that has just been woken. While
programs take a GPU from each other, at most a fifth of the time is spent with moving them. One that has
waited for longer is content with a shorter rest of the others: many short requests do not keep a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

# So long a program rests before it makes room for one that has waited for no time; for one that has waited
# for PATIENCE_S it is enough to rest at this moment.
REST_S, MIN_REST_S, PATIENCE_S = 1.0, 0.02, 10.0
# Of the time on one GPU, and what may be spent at once after a quiet time.
MOVING_SHARE, BURST_S = 0.2, 12.0


class AwakeProgram(Struct, frozen=True, kw_only=True):
    """A program that is awake, and may have to make room. ``rests_s`` None: it works.

    ``used_at`` is when it worked last, ``awake_s`` since when it is awake, ``nbytes`` by UUID of the GPU.
    """

    number: int
    nbytes: Mapping[str, int]
    used_at: float
    awake_s: float
    rests_s: float | None
    min_awake_s: float
    may_make_room: bool = True


class Turn(Struct, frozen=True, kw_only=True):
    """What is to be done: these go to sleep; or none, and it is worth to ask again after ``again_s``.

    ``why`` says for whom it waits. ``possible`` is False where all of them together would not be enough.
    """

    sleep: tuple[int, ...] = ()
    again_s: float = 0.0
    why: str = ""
    possible: bool = True


class SwapBudget:
    """The time that may be spent with moving on one GPU, so that programs do not only move."""

    def __init__(self) -> None:
        self._left_s = BURST_S
        self._at = 0.0

    def note(self, now: float, took_s: float) -> None:
        """A program has made room for another, which took so long for both."""
        self._left_s = self._left(now) - took_s
        self._at = now

    def wait_s(self, now: float) -> float:
        """How long no program makes room for another any more; 0: one may now."""
        return max(0.0, -self._left(now) / MOVING_SHARE)

    def _left(self, now: float) -> float:
        return min(BURST_S, self._left_s + MOVING_SHARE * (now - self._at))


def rest_needed_s(waited_s: float) -> float:
    """How long another must rest before it makes room for one that has waited for *waited_s*."""
    return max(MIN_REST_S, REST_S * (1.0 - waited_s / PATIENCE_S))


def make_room(
    missing: Mapping[str, int], programs: Sequence[AwakeProgram], waited_s: float, budget_s: float = 0.0
) -> Turn:
    """Choose who sleeps so that *missing* bytes become free: the least recently used, no more than needed.

    For *budget_s* none does, since so much time was spent with moving: see SwapBudget.
    """
    able = [each for each in programs if each.may_make_room and _helps(each, missing)]
    if not _enough(able, missing):
        return Turn(possible=False, why="programs that do not sleep hold the memory")
    if budget_s > 0:
        return Turn(again_s=budget_s, why="programs take the GPU from each other too often")
    rest_s = rest_needed_s(waited_s)
    ready, waits = [], []
    for each in able:
        left_s = each.min_awake_s - each.awake_s
        if left_s > 0:
            waits.append((left_s, "it was woken a short time ago"))
        elif each.rests_s is None or each.rests_s < rest_s:
            waits.append((min(REST_S, rest_s), "it works"))
        else:
            ready.append(each)
    if not _enough(ready, missing):
        again_s, why = min(waits)
        return Turn(again_s=min(again_s, REST_S), why=why)
    return Turn(sleep=tuple(each.number for each in _fewest(ready, missing)))


def _helps(program: AwakeProgram, missing: Mapping[str, int]) -> bool:
    return any(program.nbytes.get(uuid, 0) for uuid in missing)


def _enough(programs: Sequence[AwakeProgram], missing: Mapping[str, int]) -> bool:
    return all(
        sum(each.nbytes.get(uuid, 0) for each in programs) >= nbytes for uuid, nbytes in missing.items()
    )


def _fewest(ready: Sequence[AwakeProgram], missing: Mapping[str, int]) -> list[AwakeProgram]:
    """The least recently used first, until it is enough; then without those that are superfluous."""
    chosen: list[AwakeProgram] = []
    for each in sorted(ready, key=lambda each: (each.used_at, each.number)):
        chosen.append(each)
        if _enough(chosen, missing):
            break
    for each in reversed(chosen[:-1]):
        others = [other for other in chosen if other is not each]
        if _enough(others, missing):
            chosen = others
    return chosen

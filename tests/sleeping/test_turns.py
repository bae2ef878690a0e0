"""Who makes room for whom: values alone, and a day of requests in a simulation."""

from __future__ import annotations

import heapq
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.sleeping.turns import (
    BURST_S,
    MOVING_SHARE,
    REST_S,
    AwakeProgram,
    SwapBudget,
    make_room,
    rest_needed_s,
)
from vram.units import GIB

GPU, OTHER = "GPU-0", "GPU-1"


def program(number: int, **more: object) -> AwakeProgram:
    known: dict[str, object] = {
        "nbytes": {GPU: 10 * GIB},
        "used_at": float(number),
        "awake_s": 100.0,
        "rests_s": 50.0,
        "min_awake_s": 5.0,
    }
    return AwakeProgram(number=number, **(known | more))  # type: ignore[arg-type]


def choose(nbytes: int, *programs: AwakeProgram, waited_s: float = 0.0, budget_s: float = 0.0) -> object:
    turn = make_room({GPU: nbytes}, programs, waited_s, budget_s)
    return turn.sleep or (turn.why if turn.possible else "impossible")


def test_the_least_recently_used_sleeps() -> None:
    assert choose(GIB, program(2), program(1), program(3)) == (1,)


def test_as_many_as_needed_and_no_more() -> None:
    assert choose(15 * GIB, program(1), program(2), program(3)) == (1, 2)
    assert choose(15 * GIB, program(1, nbytes={GPU: GIB}), program(2, nbytes={GPU: 20 * GIB})) == (2,)


def test_one_that_works_does_not() -> None:
    assert choose(GIB, program(1, rests_s=None)) == "it works"
    assert choose(GIB, program(1, rests_s=None), program(2)) == (2,)


def test_one_that_was_just_woken_does_not() -> None:
    assert choose(GIB, program(1, awake_s=1.0)) == "it was woken a short time ago"


def test_one_that_may_not_make_room_is_not_asked() -> None:
    assert choose(GIB, program(1, may_make_room=False)) == "impossible"


def test_another_gpu_is_of_no_use() -> None:
    assert choose(GIB, program(1, nbytes={OTHER: 10 * GIB})) == "impossible"
    assert choose(11 * GIB, program(1)) == "impossible"


def test_who_has_waited_is_content_with_a_shorter_rest() -> None:
    between_requests = program(1, rests_s=0.1)
    assert choose(GIB, between_requests) == "it works"
    assert choose(GIB, between_requests, waited_s=9.9) == (1,)
    assert rest_needed_s(0.0) == REST_S


def test_programs_that_fight_wait() -> None:
    assert choose(GIB, program(1), budget_s=1.0) == "programs take the GPU from each other too often"
    budget = SwapBudget()
    assert budget.wait_s(0.0) == 0.0
    budget.note(0.0, BURST_S + 2.0)
    assert budget.wait_s(0.0) == pytest.approx(2.0 / MOVING_SHARE)
    assert budget.wait_s(2.0 / MOVING_SHARE) == pytest.approx(0.0)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 60)), min_size=1, max_size=200))
def test_no_more_than_its_share_is_spent_with_moving(swaps: list[tuple[float, float]]) -> None:
    """Whatever is wanted when: each swap begins when the budget says so, and lasts as it lasts."""
    budget, now, spent_s = SwapBudget(), 0.0, 0.0
    for pause_s, took_s in swaps:
        now += pause_s
        now += budget.wait_s(now) + took_s
        spent_s += took_s
        budget.note(now, took_s)
    longest_s = max(took_s for _, took_s in swaps)
    assert spent_s <= MOVING_SHARE * now + BURST_S + longest_s + 0.001


@given(
    st.lists(
        st.builds(
            AwakeProgram,
            number=st.integers(0, 1000),
            nbytes=st.dictionaries(st.sampled_from((GPU, OTHER)), st.integers(0, 100)),
            used_at=st.floats(0, 1000),
            awake_s=st.floats(0, 100),
            rests_s=st.none() | st.floats(0, 100),
            min_awake_s=st.floats(0, 60),
            may_make_room=st.booleans(),
        ),
        max_size=8,
        unique_by=lambda each: each.number,
    ),
    st.dictionaries(st.sampled_from((GPU, OTHER)), st.integers(1, 300), min_size=1),
    st.floats(0, 100),
)
def test_whoever_sleeps_is_enough_and_rests(
    programs: list[AwakeProgram], missing: dict[str, int], waited_s: float
) -> None:
    turn = make_room(missing, programs, waited_s)
    chosen = [each for each in programs if each.number in turn.sleep]
    for each in chosen:
        assert each.may_make_room
        assert each.rests_s is not None
        assert each.awake_s >= each.min_awake_s
    if chosen:
        for uuid, nbytes in missing.items():
            assert sum(each.nbytes.get(uuid, 0) for each in chosen) >= nbytes
            # Without any one of them it would not be enough on some GPU.
        for each in chosen:
            rest = [other for other in chosen if other is not each]
            assert any(sum(o.nbytes.get(uuid, 0) for o in rest) < nbytes for uuid, nbytes in missing.items())
    else:
        assert turn.why
        assert turn.possible is all(
            sum(each.nbytes.get(uuid, 0) for each in programs if each.may_make_room) >= nbytes
            for uuid, nbytes in missing.items()
        )


class Day:
    """Servers that share a card on which only *fit* of them have room; requests come at random."""

    MOVE_S, ANSWER_S = 3.0, 0.5

    def __init__(self, servers: int, fit: int, rates_per_s: list[float], seed: int) -> None:
        self.random = random.Random(seed)
        self.rates = rates_per_s
        self.fit = fit
        self.awake = dict.fromkeys(range(fit), -100.0)  # since when
        self.busy_until = dict.fromkeys(range(servers), 0.0)
        self.queue: list[tuple[float, int]] = []  # (wanted at, server): one entry each
        self.waiting: dict[int, list[float]] = {}
        self.moving_until = 0.0
        self.swaps = 0
        self.budget = SwapBudget()
        self.waited: dict[int, list[float]] = {number: [] for number in range(servers)}

    def run(self, seconds: float) -> None:
        arrivals = [(self.random.expovariate(rate), server) for server, rate in enumerate(self.rates)]
        heapq.heapify(arrivals)
        now, step = 0.0, 0.1
        while now < seconds:
            while arrivals[0][0] <= now:
                at, server = heapq.heappop(arrivals)
                heapq.heappush(arrivals, (at + self.random.expovariate(self.rates[server]), server))
                self._arrive(at, server)
            self._turn(now)
            now += step

    def _arrive(self, at: float, server: int) -> None:
        if server in self.awake:
            self.busy_until[server] = max(self.busy_until[server], at) + self.ANSWER_S
            self.waited[server].append(0.0)
            return
        if server not in self.waiting:
            self.queue.append((at, server))
        self.waiting.setdefault(server, []).append(at)

    def _turn(self, now: float) -> None:
        if not self.queue or now < self.moving_until:
            return
        wanted_at, server = self.queue[0]
        programs = [
            program(
                each,
                nbytes={GPU: 1},
                used_at=self.busy_until[each],
                awake_s=now - since,
                rests_s=now - self.busy_until[each] if now >= self.busy_until[each] else None,
            )
            for each, since in self.awake.items()
        ]
        turn = make_room({GPU: 1}, programs, now - wanted_at, self.budget.wait_s(now))
        if not turn.sleep:
            return
        (leaves,) = turn.sleep
        del self.awake[leaves]
        self.queue.pop(0)
        self.moving_until = now + self.MOVE_S
        self.awake[server] = self.moving_until
        for at in self.waiting.pop(server):
            self.waited[server].append(self.moving_until - at)
            self.busy_until[server] = max(self.busy_until[server], self.moving_until) + self.ANSWER_S
        self.swaps += 1
        self.budget.note(self.moving_until, self.MOVE_S)


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_few_requests_is_answered_at_once(seed: int) -> None:
    """Three servers, room for two, a request every five minutes each: few wait for longer than a move."""
    day = Day(3, 2, [1 / 300] * 3, seed)
    day.run(86_400)
    late = [wait for waits in day.waited.values() for wait in waits if wait > Day.MOVE_S + 10.0]
    every = sum(map(len, day.waited.values()))
    assert every > 600
    assert len(late) < every / 50


@pytest.mark.parametrize("seed", range(3))
def test_a_day_of_too_many_requests_is_fair_and_is_no_thrashing(seed: int) -> None:
    """All three are wanted all the time: each gets its turns, and most of the time they answer."""
    day = Day(3, 2, [0.5] * 3, seed)
    day.run(7_200)
    share_of_moves = day.swaps * Day.MOVE_S / 7_200
    assert share_of_moves < MOVING_SHARE + 0.01
    counts = Counter({server: len(waits) for server, waits in day.waited.items()})
    assert min(counts.values()) > 0.8 * max(counts.values())
    longest = max(wait for waits in day.waited.values() for wait in waits)
    assert longest < 60.0


def test_one_busy_server_does_not_keep_the_others_out() -> None:
    """A request every second for one, one a minute for the other: the quiet one is answered, too."""
    day = Day(2, 1, [1.0, 1 / 60], 1)
    day.run(7_200)
    assert max(day.waited[1]) < 60.0
    assert len(day.waited[1]) > 80

"""Work inside another program is done in slices, and what other threads waited for it is measured."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from itertools import chain
from typing import Any

import pytest

from vram.payloads.arrays.heap.referents import LARGE, Lengths, first_parents, referents
from vram.payloads.arrays.heap.walk import ByLineage, Reached, Walk
from vram.payloads.pace import Beat, Pace, postpone_full_collections

# The same call of libc, once with the interpreter's lock held and once without.
HOLDING, RELEASING = ctypes.PyDLL(None).usleep, ctypes.CDLL(None).usleep
HELD_S, RELEASED_S = 0.2, 1.0


def measured(call: Any, seconds: float) -> Pace:
    pace = Pace().begin()
    call(int(seconds * 1e6))
    pace.end()
    return pace


def test_a_call_that_keeps_the_interpreter_is_a_wait_for_others() -> None:
    """Not less than what another thread of the program saw, but for a beat."""
    victim = Beat()
    assert victim.start()
    pace = measured(HOLDING, HELD_S)
    victim.end()
    assert victim.latest_s > HELD_S / 2
    assert pace.waited_s > HELD_S / 2


def test_a_call_that_lets_others_run_is_none() -> None:
    pace = measured(RELEASING, RELEASED_S)
    assert pace.longest_s >= RELEASED_S
    assert pace.waited_s < RELEASED_S / 2


def test_waiting_for_somebody_else_is_no_slice() -> None:
    pace = Pace().begin()
    RELEASING(int(HELD_S * 1e6))
    pace.resume()
    pace.end()
    assert pace.longest_s < HELD_S


def test_what_was_done_before_the_measurement_counts_as_a_wait() -> None:
    pace = Pace().begin(since=time.monotonic() - 5.0)
    pace.end()
    assert pace.waited_s >= 5.0


def test_where_no_thread_can_be_started_the_longest_slice_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    pace = measured(RELEASING, HELD_S)
    assert pace.waited_s == pace.longest_s >= HELD_S


def test_a_slice_ends_with_a_rest_when_its_time_is_over() -> None:
    pace = Pace(until=time.monotonic() + 3600, work_s=0.0)
    assert [pace() for _ in range(5)] == [False] * 5
    assert pace.slices == 5
    pace.until = 0.0
    assert pace()


class Wanted:
    """What is searched."""


def walked(root: dict[str, object], pause: Any) -> tuple[list[int], Walk]:
    met: list[int] = []

    def take(found: list[object]) -> list[object]:
        met.extend(map(id, found))
        return []

    walk = Walk([root], (), 60.0, (), ByLineage((Wanted,)), take, pause)
    return met, walk.run()


MANY = 6 * LARGE


def test_very_large_containers_are_read_in_parts() -> None:
    wanted = [Wanted() for _ in range(10)]
    root: dict[str, object] = {
        "list": [*([number] for number in range(MANY)), wanted[0]],
        "tuple": (*([number] for number in range(MANY)), wanted[1]),
        "dict": {**{number: [number] for number in range(MANY)}, "last": wanted[2]},
        "set": {*(Key() for _ in range(MANY)), wanted[3]},
        "small": [[wanted[4]], {"a": wanted[5]}, wanted[6:]],
        # Each is small, all of them together are not.
        "lists": [[[number] for number in range(LARGE // 4)] for _ in range(40)],
    }
    pauses: list[int] = []
    met, walk = walked(root, lambda: pauses.append(1))
    assert sorted(met) == sorted(map(id, wanted))
    assert len(pauses) > 4 * MANY / LARGE
    for portion in walk.portions:
        assert len(portion) == 1 or sum(walk._lengths.of(portion)) <= LARGE
    walk.release()


def test_whatever_objects_refer_to_is_read_a_little_at_a_time() -> None:
    objects: list[object] = [[number] for number in range(3000)]
    objects[100:100] = [list(range(3 * LARGE)), [], dict.fromkeys(range(LARGE - 1)), set(range(LARGE + 1))]
    pieces = list(referents(objects, Lengths()))
    assert max(map(len, pieces)) <= 2 * LARGE  # a dict has keys and values
    assert sorted(map(id, chain(*pieces))) == sorted(map(id, gc.get_referents(*objects)))


def test_the_first_of_several_parents_is_found_in_every_part() -> None:
    wanted = [object() for _ in range(3)]
    parents = [[each] for each in range(2500)]
    first = {0: parents[10], 1: [wanted[1]] * (LARGE + 1), 2: parents[2400]}
    parents[10].append(wanted[0])
    parents[2400] += [wanted[2], wanted[0], wanted[1]]
    parents.insert(1200, first[1])
    found = first_parents(parents)
    assert [found[id(each)] for each in wanted] == [first[0], first[1], first[2]]


def test_what_was_reached_is_not_among_the_programs_objects() -> None:
    """As one of these it would be read again, in one call of tens of milliseconds."""
    reached = Reached(100)
    for number in range(5):
        reached.add(range(100 * number, 100 * number + 90))
    assert sum(type(each) is set and len(each) >= 90 for each in gc.get_referents(reached._layers)) == 5
    assert not any(map(gc.is_tracked, reached._layers))


class Key:
    """Something that can be in a set."""


def test_a_container_that_changes_while_it_is_read_is_read_all_the_same() -> None:
    wanted = Wanted()
    table: dict[object, object] = {number: [number] for number in range(MANY)}
    table["last"] = [wanted]

    def pause() -> bool:
        table[object()] = []
        return False

    met, walk = walked({"table": table}, pause)
    assert met == [id(wanted)]
    walk.release()


def test_objects_in_one_place_have_names_as_others_have() -> None:
    """An object that only one other refers to is not noted by the walk; its path is found all the same."""
    wanted = Wanted()
    root: dict[str, object] = {"a": [[[[[wanted]]]], *([number] for number in range(2000))]}
    met, walk = walked(root, lambda: False)
    parents = list(walk.parents(met))
    assert len(parents) == 6
    assert parents[-1][id(wanted)] == [wanted]
    del parents
    walk.release()


def test_threads_that_change_everything_do_no_harm() -> None:
    stop = threading.Event()
    kept = [Wanted() for _ in range(5)]
    root: dict[str, object] = {"kept": kept, "list": [], "table": {}, "set": set()}

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            root["list"] = [[[number]] for _ in range(2 * LARGE)]
            root["table"] = {number: [number] for number in range(2 * LARGE)}

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(10):
            pace = Pace()
            met, walk = walked(root, pace)
            assert set(met) >= set(map(id, kept))
            list(walk.parents(met))
            walk.release()
    finally:
        stop.set()
        changing.join()


def test_full_collections_wait_for_the_end_of_a_visit() -> None:
    """Young objects are collected meanwhile; afterwards everything is as it was."""
    before = gc.get_threshold()
    restore = postpone_full_collections()
    try:
        assert gc.get_threshold()[:2] == before[:2]
        counts = [each["collections"] for each in gc.get_stats()]
        kept = [[number] for number in range(300_000)]
        after = [each["collections"] for each in gc.get_stats()]
        assert (after[0] > counts[0], after[2]) == (True, counts[2])
        assert len(kept) == 300_000
    finally:
        restore()
    assert gc.get_threshold() == before


def test_a_program_that_sets_its_own_thresholds_meanwhile_keeps_them() -> None:
    before = gc.get_threshold()
    restore = postpone_full_collections()
    try:
        gc.set_threshold(123, 4, 5)
        restore()
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)

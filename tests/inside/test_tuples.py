"""A tuple that a thread of the program fills is not listed: Python fails the thread where it is."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.record import Tally
from tests.inside.conftest import PROGRAMS
from tests.needs import needs
from tests.patience import PATIENCE_S
from tests.search_path import search_path
from vram.payloads.arrays.heap.referents import unlisted_in
from vram.payloads.tracked_objects import tracked_objects

LOOKS = int(os.environ.get("VRAM_LOOKS", "10"))


def told_by(program: str, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program), *words],
        env={**os.environ, "PYTHONPATH": f"{search_path()}:{PROGRAMS}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S + LOOKS,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.fault(36)
def test_a_thread_fills_its_tuple_on_while_the_program_is_searched() -> None:
    assert told_by("filling.py") == [True, [200], 1]


@pytest.mark.fault(36)
def test_threads_fill_tuples_while_the_program_is_searched_again_and_again(tally: Tally) -> None:
    failures, found = told_by("crowded.py", str(LOOKS))
    tally.count(3 * LOOKS, wrong=len(failures))
    assert failures == []
    assert found == [[2, 2, 2]] * LOOKS


@pytest.mark.parametrize("generation", [None, 0])
@pytest.mark.fault(36)
def test_a_tuple_is_filled_while_the_list_exists(generation: int | None) -> None:
    lists = []

    def numbers() -> Iterator[int]:
        yield 1
        lists.append(tracked_objects(generation))
        yield 2

    assert tuple(numbers()) == (1, 2)
    assert lists[0]


@needs("older-python", there=sys.version_info < (3, 14), detail="3.14 makes it from a list, as a whole")
@pytest.mark.fault(36)
def test_python_fails_it_where_it_is_listed() -> None:
    """What the list is kept from. Code in C fills tuples step by step in newer Pythons, too."""
    lists = []

    def numbers() -> Iterator[int]:
        yield 1
        lists.append(gc.get_objects())
        yield 2

    with pytest.raises(SystemError):
        tuple(numbers())


@pytest.mark.fault(36)
def test_every_object_but_tuples_is_in_the_list_and_the_list_is_not() -> None:
    mine, tuples = [[number] for number in range(1000)], [([number],) for number in range(1000)]
    listed = tracked_objects()
    keys = set(map(id, listed))
    assert keys.issuperset(map(id, mine))
    assert keys.isdisjoint(map(id, tuples))
    assert id(listed) not in keys
    assert len(listed) == len(keys)


@pytest.mark.fault(36)
def test_complete_tuples_are_found_by_what_refers_to_them() -> None:
    inner = ([1],)
    outer = (inner, [2])
    holder = [outer, tuple(range(2))]
    gc.collect()  # which stops tracking tuples of numbers
    assert sorted(map(id, unlisted_in([holder, inner]))) == sorted(map(id, [outer, inner]))

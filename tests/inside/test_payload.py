"""What arrays a program has and who refers to them, told inside a program that has no vram."""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec

from tests.inside.conftest import Subject
from vram.model.inside import Inside
from vram.units import MIB

VISITS = 8


def rows(answer: dict[str, Any]) -> dict[str, tuple[str, int, int]]:
    return {
        re.sub(r"\.py:\d+ ", ".py:LINE ", each["held_by"]): (
            each["framework"],
            each["count"],
            each["nbytes"],
        )
        for each in answer["groups"]
    }


def test_arrays_are_told_with_the_programs_own_names(subject: Subject) -> None:
    answer = subject.tell("visit")
    assert answer["status"] == "done"
    assert rows(answer) == {
        "subject.py:LINE local 'batch' in work() of thread 'loader'": ("PyTorch", 1, 256 * MIB),
        "subject.py: trainer.model.layers[0…3].weight": ("PyTorch", 4, 16 * MIB),
        "subject.py: trainer.model.layers[0…3].weight.grad": ("PyTorch", 4, 16 * MIB),
        "subject.py: history[0…9]": ("PyTorch", 10, 10 * MIB),
        r"subject.py: cache['x\x1b[31m']": ("CuPy", 1, MIB),
        "subject.py: rude.array": ("CuPy", 1, 40_000),
        "subject.py:LINE local 'saved' in suspended generator generate() (subject.py: suspended)": (
            "CuPy",
            1,
            4356,
        ),
        "a cycle through a list: gc.collect() frees it": ("PyTorch", 1, 308),
        "subject.py: view": ("CuPy", 1, 0),
    }
    assert answer["nbytes"] == sum(nbytes for _, _, nbytes in rows(answer).values())
    assert not answer["was_cut"]


def test_the_answer_is_what_the_model_says(subject: Subject) -> None:
    decoded = msgspec.json.decode(msgspec.json.encode(subject.tell("visit")), type=Inside)
    assert decoded.arrays == 24
    assert decoded.frameworks["CuPy"] == MIB + 40_000 + 4356


def test_nothing_is_left_behind(subject: Subject) -> None:
    """Visits leave no module, thread, name, object or reference, and have run nobody's code."""
    untouched = subject.tell("census")
    subject.tell("visit")
    before = subject.tell("census")
    for _ in range(VISITS):
        assert subject.tell("visit")["status"] == "done"
    after = subject.tell("census")
    added = set(after["modules"]) - set(untouched["modules"])
    standard = set(sys.stdlib_module_names) | {"annotationlib"}  # the latter since Python 3.14
    assert {name.partition(".")[0] for name in added} <= standard
    for name in ("main", "threads", "tasks", "references"):
        assert after[name] == untouched[name], name
    assert after["modules"] == before["modules"]
    # Fewer may be there: the collector stops following tuples in which nothing can be found.
    assert {kind: n for kind, n in after["kinds"].items() if n > before["kinds"].get(kind, 0)} == {}
    assert after["calls"] == []


def test_small_arrays_are_counted_but_not_named_where_that_is_asked_for(subject: Subject) -> None:
    answer = subject.tell("visit", min_nbytes=2 * MIB)
    assert "subject.py: trainer.model.layers[0…3].weight" in rows(answer)
    assert not any("history" in name for name in rows(answer))
    assert answer["arrays"] == 24


def test_an_answer_is_bounded_and_says_what_it_left_out(subject: Subject) -> None:
    answer = subject.tell("visit", most=2)
    assert len(answer["groups"]) == 2
    left = answer["left_out"]
    assert left["groups"] == 7
    assert left["nbytes"] == answer["nbytes"] - sum(each["nbytes"] for each in answer["groups"])


def test_a_search_without_time_says_so(subject: Subject) -> None:
    answer = subject.tell("visit", budget_s=0.0)
    assert answer["was_cut"]
    assert answer["arrays"] == 24

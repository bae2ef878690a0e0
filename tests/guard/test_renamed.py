"""Old spellings of public attributes: they still answer, and warn."""

from __future__ import annotations

from typing import Any

import pytest

import vram
from vram.guard.flush import FlushReport
from vram.guard.live import Live
from vram.guard.memory import DeviceMemory
from vram.model.leak import Gain, Leak, LeakedArray
from vram.model.remanence import Trial

ARRAY = LeakedArray(what="float32 (4,)", nbytes=16, holder="train.py: history[3]")
MEMORY = (DeviceMemory(device=0, used=5, free=1, total=9),)


@pytest.mark.parametrize(
    ("subject", "old", "value"),
    [
        (ARRAY, "keeper", "train.py: history[3]"),  # old name
        (Leak(names=("a",), gains=(Gain("PyTorch", 16),), arrays=(ARRAY,)), "kept", (ARRAY,)),
        (FlushReport(live=Live((), was_cut=True)), "stayed", Live((), was_cut=True)),
        (FlushReport(before=MEMORY, after=MEMORY), "elsewhere", 5),
        (FlushReport(unreachable=(1,)), "unentered", (1,)),
        (Trial(source="plain allocations"), "place", "plain allocations"),
        (vram.scope("new"), "place", None),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_an_old_spelling_answers_and_warns(subject: Any, old: str, value: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"'{old}' is now") as caught:
        assert getattr(subject, old) == value
    assert caught[0].filename == __file__


def test_the_old_name_of_record_records() -> None:
    with vram.on_oom() as recorder, pytest.warns(DeprecationWarning, match="'notice' is now 'record'"):
        recorder.notice(ValueError("no out-of-memory error: nothing is recorded"))
    assert recorder.files == []

"""A look that never comes back costs its own answer only."""

from __future__ import annotations

from threading import Event

import pytest

from vram.doctor.collect import BestEffort


def test_what_comes_back_is_the_answer() -> None:
    assert BestEffort(lambda: 42).result(60.0) == 42


def test_what_fails_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    assert BestEffort(lambda: 1 // 0).result(60.0) is None
    assert capfd.readouterr().err == ""


def test_without_a_thread_it_is_not_begun(no_more_threads: None) -> None:
    begun: list[int] = []
    assert BestEffort(lambda: begun.append(1)).result(60.0) is None
    assert not begun


def test_what_hangs_is_left_alone() -> None:
    never = Event()
    try:
        assert BestEffort(lambda: never.wait()).result(0.0) is None
    finally:
        never.set()

"""Work that begins before its result is asked for."""

from __future__ import annotations

import pytest

from vram.host.local.open_files import Background


def test_the_result_is_waited_for() -> None:
    assert Background(lambda: 42).result() == 42


def test_what_it_raised_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        Background(lambda: 1 // 0).result()


def test_without_a_thread_it_is_done_at_once(no_more_threads: None) -> None:
    done: list[int] = []
    begun = Background(lambda: done.append(1))
    assert done == [1]
    assert begun.result() is None

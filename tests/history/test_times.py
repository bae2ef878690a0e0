"""Times as people write them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vram.errors import UsageError
from vram.history.times import read_time

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 18, 12, 0, tzinfo=BERLIN).timestamp()  # a Wednesday


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("04:12", "2026-11-18T04:12:00+01:00"),
        ("4:12:30", "2026-11-18T04:12:30+01:00"),
        ("13:00", "2026-11-17T13:00:00+01:00"),
        ("yesterday 04:12", "2026-11-17T04:12:00+01:00"),
        ("Yesterday", "2026-11-17T00:00:00+01:00"),
        ("today 04:12", "2026-11-18T04:12:00+01:00"),
        ("mon 04:12", "2026-11-16T04:12:00+01:00"),
        ("friday", "2026-11-13T00:00:00+01:00"),
        ("2026-11-16", "2026-11-16T00:00:00+01:00"),
        ("2026-11-16T04:12", "2026-11-16T04:12:00+01:00"),
        ("2026-11-16 04:12:07", "2026-11-16T04:12:07+01:00"),
        ("2026-11-16T04:12:07Z", "2026-11-16T04:12:07+00:00"),
        ("2026-11-16T04:12:07+05:30", "2026-11-16T04:12:07+05:30"),
        ("2026-07-16T04:12", "2026-07-16T04:12:00+02:00"),
        ("-2h", "2026-11-18T10:00:00+01:00"),
        ("90min ago", "2026-11-18T10:30:00+01:00"),
        ("now", "2026-11-18T12:00:00+01:00"),
        ("1794802320", "2026-11-16T04:12:00+00:00"),
    ],
)
def test_a_time_means_what_it_says(text: str, meant: str) -> None:
    found = read_time(text, NOON, BERLIN)
    assert (found.wall, found.note) == (datetime.fromisoformat(meant).timestamp(), "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "04:60",
        "25:00",
        "2026-13-01",
        "2026-02-30",
        "noon",
        "-2",
        "-2x",
        "-2m",
        "-2w",
        "-120",
        "mon tue",
        "2026-11-16T",
        "∞",
    ],
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_time(text, NOON, BERLIN)
    assert "04:12" in refused.value.hint


def test_a_time_that_came_twice_is_the_first_and_the_second_is_named() -> None:
    found = read_time("2026-10-25 02:30", NOON, BERLIN)
    assert found.wall == datetime.fromisoformat("2026-10-25T02:30:00+02:00").timestamp()
    assert "2026-10-25T01:30:00Z" in found.note


def test_a_time_that_did_not_exist_is_said() -> None:
    found = read_time("2026-03-29 02:30", NOON, BERLIN)
    assert found.wall == datetime.fromisoformat("2026-03-29T03:30:00+02:00").timestamp()
    assert "did not exist" in found.note


@given(st.text(max_size=30))
def test_anything_is_a_time_or_a_sentence(text: str) -> None:
    try:
        found = read_time(text, NOON, BERLIN)
    except UsageError:
        return
    assert isinstance(found.wall, float)

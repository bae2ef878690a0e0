"""Hostile text cannot steer a terminal, whatever it is made of."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vram.report.escape import ascii_only, inert, json_inert

ANY_TEXT = st.text(st.characters())
HOSTILE = "\x1b]0;owned\x07\r\x9b31m\u202egnp.exe\u2066\udcff\u200b\u2028\x7f"


@pytest.mark.fault(26)
@given(ANY_TEXT)
@example(HOSTILE)
def test_nothing_that_does_not_print_survives(text: str) -> None:
    assert inert(text).isprintable()
    inert(text).encode("utf-8")


@given(ANY_TEXT.filter(str.isprintable))
def test_printable_text_is_left_as_it_is(text: str) -> None:
    assert inert(text) == text


@given(ANY_TEXT)
@example(HOSTILE + "größe → 5 µs")
def test_ascii_mode_has_nothing_but_printable_ascii(text: str) -> None:
    assert all(" " <= char <= "~" for char in ascii_only(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\rb\nc\td", "a\\rb\\nc\\td"),
        ("\udcff", "\\xff"),
        ("\u202e", "\\u202e"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_escapes_are_spelled_so_that_people_recognise_them(text: str, shown: str) -> None:
    assert inert(text) == shown


@pytest.mark.fault(27)
@given(st.recursive(st.text(), lambda items: st.lists(items) | st.dictionaries(st.text(), items)))
def test_json_means_the_same_and_prints_inert(value: object) -> None:
    encoded = json_inert(msgspec.json.encode(value))
    assert encoded.decode().isprintable()
    assert msgspec.json.decode(encoded) == value

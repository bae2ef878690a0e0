"""Options that mean the same wherever they stand, and the old names of others."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Run
from vram.cli import grammar

NOBODY = str(2**22 - 1)

# The command, an old option with a value that is wrong, and its name now.
OLD_NAMES = [
    (("borrow", "1GiB"), "--from", "x", "--pid"),
    (("free",), "--from", "x", "--pid"),
    (("serve", "free"), "--from", "x", "--pid"),
    (("history", "ghosts"), "--from", "99:99", "--since"),
    (("history", "ghosts"), "--to", "99:99", "--until"),
    (("fleet",), "--from", "/no/such/folder", "--snapshots"),
]


@pytest.mark.parametrize(("words", "old", "value", "new"), OLD_NAMES)
def test_an_old_option_is_read_as_its_new_name(
    vram: Run, words: tuple[str, ...], old: str, value: str, new: str
) -> None:
    command = ("--", "true") if words[0] == "borrow" else ()
    answer = vram(*words, old, value, *command)
    assert answer == vram(*words, new, value, *command)
    assert (answer.code, "unrecognized" in answer.err) != (2, True)


@pytest.mark.parametrize(("words", "old", "value", "new"), OLD_NAMES)
def test_help_and_completion_list_only_the_new_name(
    vram: Run, words: tuple[str, ...], old: str, value: str, new: str
) -> None:
    below = [] if words[0] == "borrow" else [word for word in words[1:] if word == "free"]
    shown = vram(words[0], *below, "--help").out
    assert new in shown
    assert not re.search(rf"{old}\b", shown)
    flags = {
        flag
        for spec in grammar.command(words[0]).everything()
        for each in spec.options
        for flag in each.flags
    }
    assert new in flags
    assert old not in flags


def test_from_is_a_snapshot_wherever_it_is_listed() -> None:
    values = {
        (spec.title, option.value)
        for each in grammar.commands()
        for spec in each.everything()
        for option in spec.options
        if "--from" in option.flags
    }
    assert values
    assert {value for _, value in values} == {"FILE"}


@pytest.mark.parametrize(
    "words",
    [
        ("park", NOBODY),
        ("unpark", NOBODY),
        ("trim", NOBODY),
        ("kill", NOBODY),
        ("free", "--pid", NOBODY),
        ("attach", NOBODY),
        ("attach", "--stop", NOBODY),
        ("borrow", "1GiB", "--pid", NOBODY),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("yes", ["--yes", "-y"])
def test_yes_is_accepted_wherever_something_is_done(vram: Run, words: tuple[str, ...], yes: str) -> None:
    command = ("--", "true") if words[0] == "borrow" else ()
    answer = vram(*words, yes, *command)
    assert answer.code != 2, answer.err
    assert "unrecognized" not in answer.err

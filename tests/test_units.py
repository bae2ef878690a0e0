"""Sizes and durations as people and programs write them: a unit is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vram
from tests.guard.scoping import result
from tests.patience import PATIENCE_S
from vram.errors import UsageError
from vram.units import GIB, MIB, parse_duration, parse_size, read_size, spell_duration
from vram.virtualgpu import VirtualGpu


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("20GiB", 20 * GIB), ("20g", 20 * GIB), ("1.5 GB", 1_500_000_000), ("4096B", 4096), ("0", 0)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "8 apples", "-1GiB", "nanGiB", "infB", "GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_a_size_without_unit_is_refused_with_the_right_spelling() -> None:
    with pytest.raises(UsageError, match="'8' has no unit") as caught:
        parse_size("8")
    assert caught.value.hint == "write 8GiB, or 8B for bytes"


def test_a_program_writes_multiples_of_gib_or_text() -> None:
    assert (vram.GiB, vram.MiB) == (GIB, MIB)
    assert read_size(8 * vram.GiB, "limit") == read_size("8GiB", "limit") == 8 * GIB
    assert read_size(MIB, "limit") == MIB
    assert read_size(0, "limit") == read_size("0", "limit") == 0


@pytest.mark.parametrize(
    ("words", "hint"), [(("check", "--allow", "8"), "8GiB"), (("inside", "1", "--min-size", "10"), "10GiB")]
)
def test_the_command_line_refuses_sizes_without_unit(words: tuple[str, ...], hint: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vram", *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "has no unit" in done.stderr
    assert f"hint: write {hint}" in done.stderr


@pytest.mark.parametrize("value", [8, 1, MIB - 1])
def test_a_small_number_without_unit_is_refused_with_the_right_spelling(value: int) -> None:
    with pytest.raises(UsageError, match=f"limit={value} has no unit") as caught:
        read_size(value, "limit")
    assert f'limit="{value}GiB" or limit={value} * vram.GiB' in caught.value.hint


@pytest.mark.parametrize("value", [-1, 1.5, True, None, b"8GiB"])
def test_what_is_no_size_in_a_program(value: object) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        read_size(value, "limit")


def test_a_scope_takes_multiples_of_gib(virtual_gpu: VirtualGpu) -> None:
    program = """
        with vram.scope("work", leak="report", limit=2 * vram.GiB, tolerance=16 * vram.MiB) as s:
            tell(s.limit)
    """
    assert result(virtual_gpu, program) == 2 * GIB


@pytest.mark.parametrize(
    ("text", "spelling"), [("60", "60s"), ("0.5", "0.5s"), ("0", "0s"), ("5m", "5min"), ("2hr", "2h")]
)
def test_a_duration_without_its_unit_is_refused_with_the_right_spelling(text: str, spelling: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert caught.value.hint == f"write {spelling}"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(5.0, "5s"), (0.25, "250ms"), (120, "2min"), (90, "90s"), (3600, "1h"), (604800, "7d"), (0, "0s")],
)
def test_durations_are_spelled_as_they_are_read(seconds: float, text: str) -> None:
    assert spell_duration(seconds) == text
    assert parse_duration(text) == seconds

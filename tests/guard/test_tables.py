"""What people read keeps to their terminal, and is left whole where there is none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from vram.guard.flush import FlushReport
from vram.guard.live import Live, LiveArray, format_rows, wrap
from vram.guard.memory import DeviceMemory
from vram.notebook import Table, about
from vram.payloads.arrays.heap.search import ObjectHolder, ReferencePaths
from vram.payloads.arrays.provider import Description
from vram.units import GIB, MIB

LONG = "train.py:15 local 'activations' in frame of kept exception (train.py: errors['the first one'][0])"


def live(*holders: str, shapes: tuple[tuple[int, ...], ...] = ((1024, 1024),), note: str = "") -> Live:
    paths = ReferencePaths()
    found = []
    for key, holder in enumerate(holders):
        paths.holders[key] = ObjectHolder(holder, "module")
        description = Description(MIB, 0, key, "float32", shapes[key % len(shapes)], note)
        found.append(LiveArray("PyTorch", description, False, paths, key))
    return Live(tuple(found))


@pytest.mark.parametrize("width", [45, 60, 80, 200])
def test_nothing_is_wider_than_the_terminal_and_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    gpus = tuple(DeviceMemory(number, 3 * GIB, GIB, 80 * GIB) for number in range(8))
    found = live("train.py: x", LONG, note="a view of 16 of these bytes")
    shown = [
        repr(found),
        repr(FlushReport(gpus, gpus, live=found)),
        repr(Table("held", [("1 B", "x", LONG)])),
    ]
    for text in shown:
        assert max(map(len, text.splitlines())) <= width
        assert "".join(LONG.split()) in "".join(text.split())


def test_continuations_stand_below_their_own_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, head, row, more, *_ = repr(live(LONG)).splitlines()
    assert head.index("held by") == row.index("train.py:15") == len(more) - len(more.lstrip())


def test_without_a_terminal_every_row_is_one_line() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    program = "from vram.guard.live import terminal_width; print(terminal_width())"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "None\n", done.stderr
    assert [len(row) for row in format_rows([("1 B", LONG), ("10 MiB", LONG)], None)] == [1, 1]
    assert wrap("  " + LONG, None) == ["  " + LONG]


def test_sizes_stand_to_the_right() -> None:
    (one,), (other,) = format_rows([("8.0 MiB", "x"), ("512.0 MiB", "y")], 80)
    assert one.index("MiB") == other.index("MiB")


def test_a_row_of_several_shapes_does_not_claim_one() -> None:
    text = repr(live("m: history[0]", "m: history[1]", shapes=((2,), (3,))))
    assert "2 × float32 of several shapes" in text
    assert "(2,)" not in text


def test_one_exception_is_spoken_of_as_one() -> None:
    assert "1 exception elsewhere still holds its frames' variables" in repr(FlushReport(exceptions_kept=1))
    assert "2 exceptions elsewhere still hold their frames' variables" in repr(FlushReport(exceptions_kept=2))


def test_html_says_what_stayed_as_text_does() -> None:
    gpu = (DeviceMemory(0, GIB, GIB, 80 * GIB),)
    flushed = FlushReport(gpu, gpu, live=live("m: x"))
    assert "<p>still alive: 1.0 MiB in 1 live array" in flushed._repr_html_()


def test_foreign_text_in_a_table_is_inert_and_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = Table("held", [("1 B", "\x1b[31m<b>", "one"), ("2 B", "x", "two")], ["\x1b]0;title\x07"])
    text, html = repr(table), table._repr_html_()
    assert text.replace("\n", "").isprintable()
    assert html.isprintable()
    assert "<b>" not in html
    first, second = text.splitlines()[1:3]
    assert first.index("one") == second.index("two")


def test_a_cell_that_changed_nothing_has_no_empty_table() -> None:
    assert repr(about(0, None, [])) == "the cell kept nothing"
    assert "<table>" not in about(0, None, [])._repr_html_()
    assert "changed by 2.0 MiB, caches included" in repr(about(2 * MIB, None, []))

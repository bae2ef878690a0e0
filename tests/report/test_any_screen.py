"""Whatever a ledger holds: the screen fits, hostile text is inert, the rows account for every held byte."""

from __future__ import annotations

from io import StringIO

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, Group

from tests.diagnosis.test_any_ledger import balanced, ledgers
from vram.diagnosis.engine import diagnose
from vram.model.ledger import Ledger, known_bytes
from vram.report.layout import RenderOptions
from vram.report.process_rows import in_order, rows
from vram.report.process_table import COLUMNS, process_lines
from vram.report.screen import screen

LEDGERS = ledgers.map(balanced)


def lines(renderable: object, width: int) -> list[str]:
    console = Console(
        file=StringIO(), width=width, markup=False, highlight=False, emoji=False, color_system=None
    )
    console.print(renderable, crop=False)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().split("\n")[:-1]


@given(LEDGERS, st.sampled_from([60, 80, 100, 200]), st.booleans())
def test_the_screen_fits_and_is_inert(ledger: Ledger, width: int, ascii: bool) -> None:
    shown = lines(screen(ledger, diagnose(ledger), RenderOptions(width, ascii=ascii), height=23), width)
    assert len(shown) <= 23 + 2 * len(ledger.probes) + 6 * len(ledger.gpus)  # what could not be read has room
    for line in shown:
        assert line.isprintable()
        assert not ascii or line.isascii()
        # A command to paste is never cut.
        assert cell_len(line) <= width or line.startswith("  "), line


@given(LEDGERS)
def test_rows_account_for_every_held_byte(ledger: Ledger) -> None:
    held = [entry for gpu in ledger.gpus for entry in gpu.accounted if entry.kind_facts.held and entry.nbytes]
    assert sum(row.nbytes or 0 for row in rows(ledger)) == known_bytes(held)
    assert sum(row.nbytes or 0 for row in rows(ledger, every_process=True)) == known_bytes(held)


@given(LEDGERS)
def test_each_process_has_one_row(ledger: Ledger) -> None:
    for every_process in (False, True):
        found = rows(ledger, every_process=every_process)
        named = [
            (row.pid, row.started_at)
            for row in found
            if row.started_at is not None and row.state not in ("windows", "parked", "lent")
        ]
        assert len(named) == len(set(named))


@given(LEDGERS, st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=5), st.booleans())
def test_any_columns_in_any_order_are_one_line_a_row(ledger: Ledger, columns: list[str], cut: bool) -> None:
    found = rows(ledger)
    for by in ("trouble", "size", "gpu", "pid", "user", "age", "state", "command"):
        assert sorted(map(id, in_order(found, by))) == sorted(map(id, found))
    options = RenderOptions(80, cut=cut)
    shown = lines(Group(*process_lines(found, options, columns=columns)), 10_000)
    assert len(shown) == len(found) + 1

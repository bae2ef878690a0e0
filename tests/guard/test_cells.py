"""Which names a notebook's cell binds, as its history has the cell."""

from __future__ import annotations

import warnings

import pytest

from vram.payloads.arrays.heap.roots import Cells

BOUND = {
    "x = await model()": {"x"},
    "async with a as b: pass": {"b"},
    "for step in range(3): pass": {"step"},
    "with a as (b, c): pass": {"b", "c"},
    "import a.b, c as d": {"a", "d"},
    "from a import b as c": {"c"},
    "def f():\n  global g\n  g = 1\n  own = 2": {"f", "g"},
    "class K:\n  own = 1": {"K"},
    "x: int = 3": {"x"},
    "x += 1": {"x"},
    "(y := 5)": {"y"},
    "a, *b = c": {"a", "b"},
    "get_ipython().run_cell_magic('time', '', 'model = 1\\n')": {"model"},
    "get_ipython().run_cell_magic('bash', '', 'model=1\\n')": set(),
    "get_ipython().run_cell_magic('time', '', 'not Python')": set(),
    "get_ipython().run_line_magic('time', 'x = 1')": set(),
    "x = '\\d' + r'\\'' + '\\\\'; y = f'\\N{DASH}'": {"x", "y"},
    "x = 1 + \\\n  2": {"x"},
    "print(x)": set(),
    "not Python": set(),
    "x = 1\0": set(),
}


@pytest.mark.parametrize("cell", BOUND)
def test_names_that_a_cell_binds(cell: str) -> None:
    cells = Cells({"In": ["", cell]})
    names = ("x", "y", "a", "b", "c", "d", "f", "g", "K", "own", "step", "model", "print")
    assert {name for name in names if cells.binding(name) == 1} == BOUND[cell]


def test_reading_a_cell_warns_nobody() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert Cells({"In": ["", "pattern = '\\d'\nrun_cell_magic = '\\w'"]}).binding("pattern") == 1
    assert said == []


def test_the_last_cell_counts() -> None:
    cells = Cells({"In": ["", "x = 1", "y = 2", "x = 3", "z = x"]})
    assert [cells.binding(name) for name in ("x", "y", "z", "w")] == [3, 2, 4, None]

"""Writes and reads docs/reference/faults.md: each row of the fault table, its tests, their figures."""

from __future__ import annotations

import platform
import re
import time
from typing import Any

from tests.faults.table import ROWS, Row

_HEAD = """\
# Faults

What vram is held to when a driver, a process or a machine fails, or when somebody means harm. Each row
is tried by tests that run real processes on [the virtual GPU](virtual-gpu.md); this page is written by
`make faults`, which runs all of them, and `make test` fails where a row has no test that ran.

**tries**: how often it was tried. **landed**: how often the fault really came about (a kill can come too
late). **wrong**: how often what must hold did not.

"""
_TEST = re.compile(r"^\| `(tests/[^`]+)` \| (.*) \|$", re.MULTILINE)
_ROW = re.compile(r"^\| \[?(\d+)\b.*\|$", re.MULTILINE)


class Figures:
    """Of one test, all its parameters together."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows
        self.tries = self.landed = self.wrong = 0
        self.skipped: list[str] = []

    def add(self, told: dict[str, Any]) -> None:
        self.tries += told["tries"]
        self.landed += told["landed"]
        self.wrong += told["wrong"]
        if told["skipped"] is not None:
            self.skipped.append(told["skipped"])

    def cells(self) -> str:
        skipped = "".join(f"; skipped: {reason}" for reason in sorted(set(self.skipped)))
        return f"{self.tries:,} tries, {self.landed:,} landed, {self.wrong:,} wrong{skipped}"


def by_row(figures: dict[str, Figures]) -> dict[int, dict[str, Figures]]:
    rows: dict[int, dict[str, Figures]] = {}
    for name, each in sorted(figures.items()):
        for row in each.rows:
            rows.setdefault(row, {})[name] = each
    return rows


def page(figures: dict[str, Figures]) -> str:
    """The whole page, from the figures of one run."""
    rows = by_row(figures)
    when = time.strftime("%Y-%m-%d", time.gmtime())
    where = f"Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    ran = f"Last run: {when}, {where}, {len(figures)} tests.\n\n"
    table = "| # | fault | must hold | tries | landed | wrong |\n|---:|---|---|---:|---:|---:|\n"
    table += "".join(_line(row, rows.get(row.number, {})) for row in ROWS)
    return _NOTE + _HEAD + ran + table + "".join(_section(row, rows.get(row.number, {})) for row in ROWS)


_NOTE = "<!-- written by `make faults`: change the tests or tests/faults/table.py, then run it -->\n\n"


def _line(row: Row, tests: dict[str, Figures]) -> str:
    begin = f"| [{row.number}](#row-{row.number}) | {row.fault} | {row.must_hold} |"
    if row.whole:
        return f"{begin} | | not built yet |\n"
    sums = (sum(getattr(each, what) for each in tests.values()) for what in ("tries", "landed", "wrong"))
    return begin + "".join(f" {number:,} |" for number in sums) + "\n"


def _section(row: Row, tests: dict[str, Figures]) -> str:
    text = f"\n## Row {row.number}\n\n{row.fault}: {row.must_hold}.\n"
    if row.not_built:
        text += f"\nNot built yet: {row.not_built}.\n"
    if tests:
        text += "\n| test | figures |\n|---|---|\n"
        text += "".join(f"| `{name}` | {each.cells()} |\n" for name, each in tests.items())
    return text


def named_on(text: str) -> dict[int, set[str]]:
    """Which tests a written page names, by row."""
    named = {}
    for section in re.split(r"^## Row ", text, flags=re.MULTILINE)[1:]:
        named[int(section.split()[0])] = {name for name, _ in _TEST.findall(section)}
    return named


def wrongs(text: str) -> list[str]:
    """Lines of a written page that tell of something wrong."""
    return [f"{name}: {cells}" for name, cells in _TEST.findall(text) if not re.search(r", 0 wrong", cells)]

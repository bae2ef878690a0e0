"""The table of docs/reference/exit-codes.md, which command pages and manual pages quote."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from vram.errors import ExitCode

TABLE = Path(__file__).resolve().parents[1] / "reference" / "exit-codes.md"
ROW = re.compile(r"^\| *(\d+) \| ([^|]+?) \|(?: ([^|]+?) \|)?$", re.MULTILINE)


class Code(NamedTuple):
    """A number, what it means, and which commands can answer with it."""

    number: int
    meaning: str
    commands: tuple[str, ...]


@cache
def codes() -> tuple[Code, ...]:
    """Every code of the table; it has exactly those that the program has."""
    rows = [
        Code(int(number), meaning, tuple((commands or "all").replace("`", "").split(", ")))
        for number, meaning, commands in ROW.findall(TABLE.read_text())
    ]
    told, known = {row.number for row in rows}, set(map(int, ExitCode))
    if told != known:
        raise SystemExit(
            f"docs/reference/exit-codes.md and vram.errors.ExitCode differ in {sorted(told ^ known)}"
        )
    return tuple(rows)


def for_command(name: str) -> list[Code]:
    return [code for code in codes() if "all" in code.commands or name in code.commands]

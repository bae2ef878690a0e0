"""Manual pages from docstrings: a heading ends with a colon there, and gets its line of dashes here."""

from __future__ import annotations

import re

_HEADING = re.compile(
    r"^(What it (?:checks|means|is)|What to do|How it is recognised|How to confirm|Remedies"
    r"|Source|Method|Reading):\n|^(Source): ",
    re.MULTILINE,
)


def manual_page(docstring: str | None) -> str:
    """The page that *docstring* is; nothing under -OO, which strips docstrings."""
    first, *lines = (docstring or "").strip().split("\n")
    # inspect.cleandoc would do, and importing inspect takes longer than all checks of the doctor together.
    if all(line.startswith("    ") for line in lines if line):
        lines = [line.removeprefix("    ") for line in lines]
    return _HEADING.sub(_underline, "\n".join((first, *lines)))


def _underline(found: re.Match[str]) -> str:
    heading = found[1] or found[2]
    return f"{heading}\n{'-' * len(heading)}\n"

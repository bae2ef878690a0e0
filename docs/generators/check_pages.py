"""docs/reference/doctor.md: every check of the doctor, by its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

from vram.doctor import manual
from vram.doctor.checks import CHECKS

UNDERLINED = re.compile(r"^(.+)\n-{3,}$", re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    yield "docs/reference/doctor.md", "\n".join([*_index(), *_sections()]) + "\n"


def _index() -> Iterator[str]:
    yield "# Checks of `vram doctor`\n"
    yield "How to read its answers is in the [guide](../guides/doctor.md). An id never changes its meaning;"
    yield "`vram explain CHECK` shows its page.\n"
    yield "| check | question | bears on | |"
    yield "|---|---|---|---|"
    for check in CHECKS:
        anchor = check.id.replace(".", "")
        bears_on = ", ".join(check.verbs) or "none"
        optional = "optional" if check.optional else ""
        yield f"| [{check.id}](#{anchor}) | {manual.summary(check.id)} | {bears_on} | {optional} |"


def _sections() -> Iterator[str]:
    for check in CHECKS:
        yield f"\n## {check.id}\n"
        body = cleandoc(manual.page(check.id)).removeprefix(check.id).strip()
        yield UNDERLINED.sub(r"### \1\n", body)

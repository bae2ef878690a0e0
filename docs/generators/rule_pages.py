"""docs/reference/rules.md and a page per rule: its docstring, under an address that never changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

from vram.diagnosis import manual

FOLDER = "docs/reference/rules"
UNDERLINED = re.compile(r"^(.+)\n-{3,}$", re.MULTILINE)


def pages() -> Iterator[tuple[str, str]]:
    yield "docs/reference/rules.md", "\n".join(_index()) + "\n"
    for code in manual.codes():
        yield f"{FOLDER}/{code}.md", "\n".join(_page(code)) + "\n"


def _index() -> Iterator[str]:
    yield "# Rules\n"
    yield "Every finding carries a code that never changes its meaning; `vram explain CODE` shows its page.\n"
    yield "| code | cause |"
    yield "|---|---|"
    for code in manual.codes():
        yield f"| [{code}](rules/{code}.md) | {manual.summary(code)} |"


def _page(code: str) -> Iterator[str]:
    title, _, rest = manual.summary(code).partition(": ")
    yield f"# {code}: {title}\n"
    if rest:
        yield f"{rest[:1].upper()}{rest[1:]}"
    yield UNDERLINED.sub(r"## \1\n", _linked(_body(code), code))
    yield f"\nThe same page in a terminal: `vram explain {code}`. [All rules](../rules.md)"


def _body(code: str) -> str:
    return cleandoc(manual.page(code)).partition("\n")[2].rstrip()


def _linked(text: str, own: str) -> str:
    """Other codes become links, but not inside blocks that stay as they are."""
    known = set(manual.codes()) - {own}
    lines = (
        line if line.startswith("    ") else re.sub(r"\bVR\d{3}\b", lambda m: _link(m[0], known), line)
        for line in text.splitlines()
    )
    return "\n".join(lines)


def _link(code: str, known: set[str]) -> str:
    return f"[{code}]({code}.md)" if code in known else code

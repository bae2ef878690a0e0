"""Names of arrays in a list, with their positions: ``xs[0]`` to ``xs[11]`` are ``xs[0…11]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_POSITION = re.compile(r"\[(\d{1,18})\]")


def split_positions(text: str) -> tuple[str, list[int]]:
    """*text* with empty brackets, and the positions that were in them."""
    return _POSITION.sub("[]", text), list(map(int, _POSITION.findall(text)))


def spanned(stem: str, positions: Sequence[Sequence[int]]) -> str:
    """*stem* with its positions: one if all are equal, first to last if none is missing between."""
    words = stem.split("[]")
    text = words[0]
    for slot, word in enumerate(words[1:]):
        there = {each[slot] for each in positions if slot < len(each)}
        text += f"[{_span(there)}]{word}"
    return text


def _span(there: set[int]) -> str:
    if not there:
        return "…"
    first, last = min(there), max(there)
    if first == last:
        return str(first)
    return f"{first}…{last}" if len(there) == last - first + 1 else "…"

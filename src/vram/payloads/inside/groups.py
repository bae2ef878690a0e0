"""Arrays that are alike and lie side by side, as one: ``history[0…9]``."""

from __future__ import annotations

import re
from typing import Any

from ..arrays.heap.peek import inert
from ..arrays.pace import Pause
from .look import Look, Seen

_POSITION = re.compile(r"\[(\d+)\]")
LONGEST_TEXT, LONGEST_WORD, MOST_DIMENSIONS = 300, 60, 16
AT_ONCE = 100


def groups(look: Look, pause: Pause) -> list[dict[str, Any]]:
    """All that was seen, alike ones together, largest first."""
    members: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    for number, each in enumerate(look.seen):
        holder = look.holder(each)
        stem = _POSITION.sub("[]", holder.text)
        positions = tuple([int(digits) for digits in _POSITION.findall(holder.text) if len(digits) < 19])
        members.setdefault((*_alike(each), holder.kind, stem), []).append(positions)
        if number % AT_ONCE == 0:
            pause()
    found = [_group(key, positions) for key, positions in members.items()]
    return sorted(found, key=lambda group: (group["is_shared"], -group["nbytes"]))


def _alike(each: Seen) -> tuple[Any, ...]:
    told = each.description
    return (
        str(each.leaf.NAME),
        told.device,
        _text(told.dtype, LONGEST_WORD),
        tuple(told.shape[:MOST_DIMENSIONS]),
        told.nbytes,
        _text(told.note, LONGEST_TEXT),
        each.is_shared,
    )


def _group(key: tuple[Any, ...], positions: list[tuple[int, ...]]) -> dict[str, Any]:
    framework, device, dtype, shape, nbytes, note, is_shared, kind, stem = key
    count = len(positions)
    return {
        "framework": framework,
        "device": device,
        "dtype": dtype,
        "shape": list(shape),
        "count": count,
        "each_nbytes": nbytes,
        "nbytes": 0 if is_shared else nbytes * count,
        "is_shared": is_shared,
        "note": note,
        "held_by": _text(_spanned(stem, positions), LONGEST_TEXT),
        "kind": kind,
    }


def _spanned(stem: str, positions: list[tuple[int, ...]]) -> str:
    """*stem* with its positions again: one for all, or from the first to the last if none is missing."""
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


def _text(text: str, most: int) -> str:
    shown = inert(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"

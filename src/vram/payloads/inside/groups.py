"""Arrays that are alike and lie side by side, as one: ``history[0…9]``."""

from __future__ import annotations

import re
from typing import Any

from ..arrays.heap.peek import inert
from ..arrays.pace import Pause
from .look import Look, Seen

_POSITION = re.compile(r"\[(\d{1,18})\]")
_STANDS_FOR_ANY = 999_999_999_999_999_999
LONGEST_TEXT, LONGEST_WORD, MOST_DIMENSIONS = 300, 60, 16
AT_ONCE = 100


def groups(look: Look, pause: Pause) -> list[dict[str, Any]]:
    """All that was seen, alike ones together, largest first."""
    members: dict[tuple[Any, ...], list[tuple[int, ...]]] = {}
    stems = _Stems(look)
    for number, each in enumerate(look.seen):
        kind, stem, positions = stems.of(each)
        members.setdefault((*_alike(each), kind, stem), []).append(positions)
        if number % AT_ONCE == 0:
            pause()
    found = [_group(key, positions) for key, positions in members.items()]
    return sorted(found, key=lambda group: (group["is_shared"], -group["nbytes"]))


class _Stems:
    """Who refers to an array: the kind, the words without their positions, and the positions."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._by_parent: dict[int, tuple[str, str, list[int], int]] = {}

    def of(self, each: Seen) -> tuple[str, str, tuple[int, ...]]:
        trails = self._look.trails
        link = trails.links.get(each.key)
        if type(link) is not int or each.key in trails.told or each.key not in self._look.sought:
            holder = self._look.holder(each)
            stem, positions = _parted(holder.text)
            return holder.kind, stem, tuple(positions)
        parent = trails.up[each.key]
        if parent not in self._by_parent:
            self._by_parent[parent] = self._of_members(parent)
        kind, stem, positions, slot = self._by_parent[parent]
        return kind, stem, (*positions[:slot], link, *positions[slot + 1 :])

    def _of_members(self, parent: int) -> tuple[str, str, list[int], int]:
        """What the words for each member of a list have in common, and where its position stands in them."""
        words = self._look.trails.words(parent).then(f"[{_STANDS_FOR_ANY}]")
        stem, positions = _parted(words.text())
        slot = positions.index(_STANDS_FOR_ANY) if _STANDS_FOR_ANY in positions else len(positions)
        return words.kind, stem, positions, slot


def _parted(text: str) -> tuple[str, list[int]]:
    return _POSITION.sub("[]", text), list(map(int, _POSITION.findall(text)))


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

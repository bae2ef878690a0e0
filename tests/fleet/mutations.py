"""Snapshots changed at random: values of another kind or size, members gone or doubled, bytes flipped."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

EXTREMES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        100,
        200,
        201,
        3,
        7,
        1 << 31,
        1 << 40,
        (1 << 62) - 1,
        1 << 62,
        1 << 63,
        -(1 << 63),
        1 << 70,
    ),
    *(0.5, -1e308, 1e308, "", "x", "0", "\x1b[2J", "\u202e", "\ud800", "=cmd()", "<script>", "a" * 70_000),
    *([], {}, [[]], {"type": "charge"}, ["compute"] * 50, "ok", "lost", "denied", "Z", "D", "process"),
)


def mutations(snapshot: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield *count* changed copies of *snapshot*, the same ones for the same seed."""
    chance = random.Random(seed)
    whole = json.loads(snapshot)
    for _ in range(count):
        if chance.random() < 0.15:
            yield _flipped(snapshot, chance)
            continue
        changed = copy.deepcopy(whole)
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            _change(changed, chance)
        yield json.dumps(changed).encode()


def _flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 3, 30))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.3 else changed)


def _change(value: Any, chance: random.Random) -> None:
    """Walk down to some member, and change it."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        inner = value[key]
        if isinstance(inner, dict | list) and inner and chance.random() < 0.85:
            value = inner
            continue
        _replace(value, key, chance)
        return


def _replace(value: Any, key: Any, chance: random.Random) -> None:
    what = chance.random()
    if what < 0.15:
        del value[key]
    elif what < 0.3 and isinstance(value, list):
        value.extend(copy.deepcopy([value[key]]) * chance.choice((1, 2, 300)))
    elif what < 0.5 and isinstance(value[key], int):
        value[key] = value[key] * chance.choice((-1, 2, 1000)) + chance.choice((-1, 0, 1))
    else:
        # Mostly of the same kind: what is of another kind is refused before anybody looks at it.
        alike = [each for each in EXTREMES if type(each) is type(value[key])]
        value[key] = copy.deepcopy(chance.choice(alike if alike and chance.random() < 0.9 else EXTREMES))

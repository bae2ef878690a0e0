"""Damage to JSON documents as accidents and enemies do it: bytes, structure, values."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

ROUNDS = int(os.environ.get("VRAM_FUZZ_ROUNDS", "150"))

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**30, 0.5, 1e308),
    *("", "\0", "\x1b[2J\x1b]0;x\x07", "\u202e", "a" * 5_000, "🦀" * 50, "../../etc/passwd", "-1", "[]"),
    *([], {}, [[]], [None], {"": None}, [1] * 500),
)
RAW = (b"\xff", b"\\ud800", b"\0", b"[" * 5_000, b'{"a":' * 5_000, b"9" * 6_000, b"NaN", b"1e999", b"\\")


def mutations(document: bytes, seed: int, rounds: int = ROUNDS) -> Iterator[bytes]:
    """Damaged copies of *document*, the same ones in every run."""
    random = Random(seed)
    whole = json.loads(document)
    for _ in range(rounds):
        if random.random() < 0.4:
            yield _damaged_bytes(document, random)
        else:
            changed = copy.deepcopy(whole)
            for _ in range(random.choice((1, 1, 1, 2, 5))):
                _damage_structure(changed, random)
            yield json.dumps(changed).encode()


def _damaged_bytes(document: bytes, random: Random) -> bytes:
    at = random.randrange(len(document))
    match random.randrange(5):
        case 0:
            return document[:at]
        case 1:
            return document[:at] + bytes([random.randrange(256)]) + document[at + 1 :]
        case 2:
            end = min(len(document), at + random.randrange(1, 64))
            return document[:at] + document[end:]
        case 3:
            return document[:at] + random.choice(RAW) + document[at:]
        case _:
            return document[:at] + document[: random.randrange(len(document))]


def _damage_structure(document: Any, random: Random) -> None:
    place, key = random.choice(list(_places(document)) or [(document, None)])
    if key is None:
        return
    match random.randrange(4):
        case 0:
            del place[key]
        case 1:
            place[key] = copy.deepcopy(random.choice(VALUES))
        case 2 if isinstance(place, list):
            place[key:key] = [copy.deepcopy(place[key])] * random.choice((1, 3, 50))
        case 3:
            other, at = random.choice(list(_places(document)))
            place[key] = copy.deepcopy(other[at])


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of *document* by what has it."""
    waiting = [document]
    while waiting:
        place = waiting.pop()
        keys: Callable[[], Any] = place.keys if isinstance(place, dict) else lambda at=place: range(len(at))
        for key in list(keys()):
            yield place, key
            if isinstance(place[key], (dict, list)):
                waiting.append(place[key])

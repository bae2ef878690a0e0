"""How each framework words running out of memory, across its versions: a module for each family.

A dialect is a function under :func:`dialect`. It takes the figures of a message and nothing else. Their order
is in :mod:`vram.oom.reader`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from vram.model.oom import Amount, OomMessage
from vram.oom.passage import Passage
from vram.units import GIB, KIB, MIB

Match = re.Match[str]
Parsed = OomMessage | tuple[OomMessage, int] | None
"""What a message says, and where it ends if not with the match; None where it only looked like one."""
Read = Callable[[Match, Passage], Parsed]


class Dialect(NamedTuple):
    """How a message begins, and what can be read from there on.

    One of ``needles`` is in every message that ``start`` matches, in its first line where nothing wrapped
    it. ``read(found, passage)`` gets the match and the text that it is in, with the log above.
    """

    name: str
    needles: tuple[bytes, ...]
    start: re.Pattern[str]
    read: Read

    def parse(self, found: Match, passage: Passage) -> tuple[OomMessage, int] | None:
        """What *found* says, and where in the text it ends."""
        parsed = self.read(found, passage)
        return (parsed, found.end()) if isinstance(parsed, OomMessage) else parsed


def dialect(name: str, *, needles: tuple[bytes, ...], start: re.Pattern[str]) -> Callable[[Read], Dialect]:
    """Make a function that reads one kind of message a dialect."""
    return lambda read: Dialect(name, needles, start, read)


# ---- sizes as frameworks print them: "2.00 GiB", "1,048,576 bytes", "17.79G (19104890880 bytes)" ----

# A size inside a pattern. Where bytes follow in parentheses, they are the exact figure.
NUMBER = r"\d[\d,]*(?:\.\d+)?"
UNIT = r"(?:[KMGTPE]i?B|[KMGT]|bytes?|B)\b"
SIZE = rf"{NUMBER}\s*{UNIT}(?:\s*\(\s*[\d,]+\s*(?:bytes|B)\s*\))?"

_EXACT = re.compile(r"\(\s*([\d,]+)\s*(?:bytes|B)\s*\)")
_PRINTED = re.compile(rf"({NUMBER})\s*({UNIT})?")
# XLA and TensorFlow write G for GiB; PyTorch's MPS backend writes GB and means GiB as well.
_SCALES = {"k": KIB, "m": MIB, "g": GIB, "t": 1024**4, "p": 1024**5, "e": 1024**6}
# NVML's "not available" read as a size is 16 EiB: no figure at all.
_ABSURD = 1 << 63


# A log repeats its figures.
@lru_cache(maxsize=1024)
def amount(text: str | None, unit: str = "") -> Amount | None:
    """Read one printed size; *unit* is for numbers that carry none. None where it is no size."""
    if not text:
        return None
    exact = _EXACT.search(text)
    if exact:
        return _sane(int(exact.group(1).replace(",", "")), 0)
    found = _PRINTED.search(text)
    if not found:
        return None
    digits = found.group(1).replace(",", "")
    scale = _SCALES.get((found.group(2) or unit)[:1].lower(), 1)
    decimals = len(digits.partition(".")[2])
    slack = 0 if scale == 1 else -(-scale // (2 * 10**decimals))
    return _sane(round(float(digits) * scale), slack)


def _sane(nbytes: int, slack: int) -> Amount | None:
    return Amount(nbytes, slack) if nbytes < _ABSURD else None


def amount_in(pattern: re.Pattern[str], text: str) -> Amount | None:
    """The size that the first group of *pattern* finds in *text*."""
    found = pattern.search(text)
    return amount(found.group(1)) if found else None


def last_in(pattern: re.Pattern[str], text: str) -> str | None:
    """What the only group of *pattern* found last in *text*."""
    found = pattern.findall(text)
    return found[-1] if found else None


def plus(one: Amount | None, other: Amount | None) -> Amount | None:
    """Their sum; None where one is unknown."""
    return Amount(one.nbytes + other.nbytes, one.slack + other.slack) if one and other else None


def minus(whole: Amount | None, part: Amount | None) -> Amount | None:
    """What is left of *whole*, at least nothing; None where one is unknown."""
    if not (whole and part):
        return None
    return Amount(max(0, whole.nbytes - part.nbytes), whole.slack + part.slack)

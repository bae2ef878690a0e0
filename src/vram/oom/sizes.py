"""Sizes as frameworks print them: "2.00 GiB", "1,048,576 bytes", "17.79G (19104890880 bytes)"."""

from __future__ import annotations

import re
from functools import lru_cache

from vram.model.oom import Amount
from vram.units import GIB, KIB, MIB

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

"""CUDA's words for an error that breaks the context for good: an illegal address, an assert on the device.

They speak of no memory, and yet people meet them beside it: what failed cannot be freed any more.
"""

from __future__ import annotations

import re

from vram.model.oom import Reading
from vram.payloads.trim.broken import STICKY

NAME = "cuda-error"
SIGN = "sticky"
# How the driver and the runtime put it (cuGetErrorString), where no name of the error is told.
WORDS = {
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    710: "device-side assert triggered",
    714: "hardware stack error",
    715: "an illegal instruction was encountered",
    716: "misaligned address",
    717: "operation not supported on global/shared address space",
    718: "invalid program counter",
    719: "unspecified launch failure",
}
_NAMES = {name: code for code, (driver, runtime, _) in STICKY.items() for name in (driver, runtime)}
_CODES = {**_NAMES, **{words: code for code, words in WORDS.items()}}

NEEDLES: tuple[bytes, ...] = (
    *(b"CUDA_ERROR_", b"cudaError", b"llegal memory access", b"side assert triggered", b"launch failure"),
    *(b"illegal instruction was", b"isaligned address", b"launch timed out"),
    *(b"hardware stack error", b"global/shared address space", b"invalid program counter"),
)


def _spaced(words: str) -> str:
    """Terminals and loggers break lines anywhere."""
    return r"\s+".join(map(re.escape, words.split()))


# PyTorch 2.9 and later tell where to look the error's name up: that is no second error.
START = re.compile(
    "|".join(
        [
            *(rf"(?<!Search for `){name}\b" for name in sorted(_NAMES, key=len, reverse=True)),
            *(_spaced(words) for words in WORDS.values()),
        ]
    )
)
# Words that other programs use too count where CUDA is named with them.
_ALONE_TELLS = frozenset((700, 710, 717, 719))
_CUDA = re.compile(r"CUDA|[cC]uda|\bcu[A-Z]\w+\s+failed|GPUassert")


def read(found: re.Match[str], text: str, before: str) -> tuple[Reading, int] | None:
    said = " ".join(found.group().split())
    code = _CODES[said]
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.end()]
    if said not in _NAMES and code not in _ALONE_TELLS and not _CUDA.search(line):
        return None
    # A message often tells the name and then the words: that is one error.
    again = re.compile(rf"[\s:(]*{_spaced(WORDS[code])}").match(text, found.end()) if code in WORDS else None
    reading = Reading(dialect=NAME, wording=STICKY[code][0], signs=(SIGN,))
    return reading, (again or found).end()


def code_in(text: str) -> int | None:
    """The number of the sticky error that *text* reports first."""
    for found in START.finditer(text):
        known = read(found, text, "")
        if known is not None:
            return _NAMES[known[0].wording]
    return None

"""What the articles' C++ programs leave unfreed when they end, on the virtual GPU and on real ones."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.examples.expected import EXPECTED
from vram.units import GIB, MIB

EXAMPLES = Path(__file__).parents[2] / "examples"
CPP = [name for name in EXPECTED if not name.startswith("threads/")]


class Unfreed(NamedTuple):
    """The function and the line of a place that allocates and never frees, and what it leaves."""

    function: str
    file: str
    line: int
    nbytes: int
    count: int


def _at(function: str, file: str, text: str, nbytes: int, count: int) -> Unfreed:
    lines = (EXAMPLES / file).read_text().splitlines()
    (line,) = [number for number, each in enumerate(lines, 1) if text in each]
    return Unfreed(function, Path(file).name, line, nbytes, count)


UNFREED = {
    "out-of-memory/1_exception_as_written": _at(
        "main", "out-of-memory/1_exception_as_written.cpp", "cudaMalloc(", GIB, 1
    ),
    "out-of-memory/3_library_as_written": _at(
        "library::score", "out-of-memory/library.h", "cudaMalloc(", 128 * MIB, 2
    ),
}
"""All the others free what they allocate, or end the context that has it."""


def source_of(name: str) -> Path:
    return EXAMPLES / f"{name}.cpp"

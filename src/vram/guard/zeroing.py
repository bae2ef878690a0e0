"""Sets the bytes of an array to zero where they lie, in as few driver calls as its strides allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from vram.guard.driver import Driver
from vram.guard.layout import Layout, runs

LARGEST_PITCH = 2**31 - 1


class Piece(NamedTuple):
    """*height* runs of *width* bytes, *pitch* bytes apart."""

    offset: int
    width: int
    height: int
    pitch: int


def erase(cuda: Driver, pointer: int, device: int, layout: Layout) -> None:
    """Done when it returns."""
    with cuda.within(pointer, device):
        # Work of other streams may still write: it ends first, or it would undo the erasing.
        cuda.must("cuCtxSynchronize")
        for piece in pieces(layout):
            cuda.must("cuMemsetD2D8_v2", pointer + piece.offset, piece.pitch, 0, piece.width, piece.height)
        cuda.must("cuCtxSynchronize")


def pieces(layout: Layout) -> Iterator[Piece]:
    """The bytes of *layout* in as few pieces as its strides allow."""
    offset, width, steps = runs(layout)
    height, pitch = 1, width
    if steps and width <= steps[0][1] <= LARGEST_PITCH:
        height, pitch = steps.pop(0)
    for index in itertools.product(*(range(extent) for extent, _ in steps)):
        moved = sum(number * stride for number, (_, stride) in zip(index, steps, strict=True))
        yield Piece(offset + moved, width, height, pitch)

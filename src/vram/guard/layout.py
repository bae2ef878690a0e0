"""How elements lie in memory, in the words of DLPack and of the CUDA array interface."""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple

from vram.errors import UsageError

# DLPack's letter for a kind of element, and the one of a NumPy type string.
INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 3, 4, 5, 6
_LETTERS = {INT: "i", UINT: "u", FLOAT: "f", COMPLEX: "c", BOOL: "b", OPAQUE: "V"}
_CODES = {letter: code for code, letter in _LETTERS.items()}


class ElementType(NamedTuple):
    """One element, as DLPack says it: a kind, its bits, and how many stand side by side."""

    code: int
    bits: int
    lanes: int = 1

    @property
    def nbytes(self) -> int:
        return -(-self.bits * self.lanes // 8)

    @property
    def type_string(self) -> str | None:
        """As NumPy writes it; None where NumPy has no such type (bfloat16, vectors, 4 bits)."""
        letter = _LETTERS.get(self.code)
        if letter is None or self.lanes != 1 or self.bits % 8:
            return None
        return f"{'|' if self.bits == 8 else '<'}{letter}{self.bits // 8}"

    @classmethod
    def read(cls, type_string: str) -> ElementType:
        code = _CODES.get(type_string[1:2])
        if code is None or not type_string[2:].isdecimal() or type_string[0] == ">":
            raise UsageError(f"elements of type {type_string!r} are not understood")
        return cls(code, int(type_string[2:]) * 8)


BYTE = ElementType(UINT, 8)


class Layout(NamedTuple):
    """Strides count bytes; None means that elements lie side by side, the last index fastest."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    element: ElementType = BYTE

    @property
    def byte_strides(self) -> tuple[int, ...]:
        return dense(self.shape, self.element.nbytes) if self.strides is None else self.strides

    @property
    def is_dense(self) -> bool:
        """A stride that leads nowhere may be any: PyTorch lends (1, 4) with strides (1, 1)."""
        wanted = dense(self.shape, self.element.nbytes)
        steps = zip(self.shape, self.byte_strides, wanted, strict=True)
        return all(extent == 1 or stride == want for extent, stride, want in steps)

    @property
    def nbytes(self) -> int:
        """Of the elements themselves, gaps not counted."""
        count = self.element.nbytes
        for extent in self.shape:
            count *= extent
        return count


def dense(shape: tuple[int, ...], nbytes: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(nbytes)
        nbytes *= extent
    return tuple(reversed(strides))


def runs(layout: Layout) -> tuple[int, int, list[tuple[int, int]]]:
    """The same bytes as (offset of the first, bytes side by side, [(extent, stride), …]).

    Dimensions that lie side by side are joined, repeated ones (stride 0) counted once, and those
    that run backwards turned round, so that what is left has the fewest pieces.
    """
    offset, width = 0, layout.element.nbytes
    steps: list[tuple[int, int]] = []
    for extent, stride in zip(layout.shape, layout.byte_strides, strict=True):
        if stride < 0:
            offset += stride * (extent - 1)
        if extent > 1 and stride:
            steps.append((extent, abs(stride)))
    steps.sort(key=lambda step: step[1])
    while steps and steps[0][1] == width:
        width *= steps.pop(0)[0]
    joined: list[tuple[int, int]] = []
    for extent, stride in steps:
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * extent, joined[-1][1])
        else:
            joined.append((extent, stride))
    return offset, width, joined


def told(shape: tuple[int, ...], strides: tuple[int, ...] | None, element: ElementType) -> Layout:
    """As another library tells it, whose word is not taken for what cannot be."""
    is_paired = strides is None or len(strides) == len(shape)
    if not is_paired or min(shape, default=0) < 0 or element.nbytes <= 0:
        raise UsageError(f"no array has shape {shape}, strides {strides}, elements of {element.nbytes} bytes")
    return Layout(shape, strides, element)


def from_interface(interface: dict[str, Any]) -> Layout:
    """What a ``__cuda_array_interface__`` says."""
    strides = interface.get("strides")
    return told(
        tuple(map(index, interface["shape"])),
        tuple(map(index, strides)) if strides else None,
        ElementType.read(interface["typestr"]),
    )

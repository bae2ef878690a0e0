"""The arrays that a process had when `vram attach` began to record it: the blob, and what it calls each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

from msgspec import Struct

from vram import untrusted
from vram.model.trace import HeldArrays

FORM = 1
MAX_TEXT, MAX_ITEMS, MAX_NAME_LENGTH = 16 << 20, 400_000, 400


class ArraysBlob(Struct, frozen=True):
    """As ``payloads/tracer/begin.py`` wrote it."""

    form: int
    wall_ns: int
    """When they had all been read. Those that existed to then had these names."""
    frameworks: list[str]
    names: list[str]
    arrays: list[tuple[int, int, int, int, int]]
    """Address, bytes, device (-1 unknown), numbers of the framework and of the name."""


def decode(data: bytes) -> ArraysBlob:
    """Raises ``untrusted.Rejected``."""
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(data, MAX_TEXT)
    except zlib.error as error:
        raise untrusted.Rejected("wrong-shape", f"it cannot be unpacked: {error}") from error
    if not unpacking.eof:
        raise untrusted.Rejected("too-large", "it is larger than allowed, or cut short")
    blob = untrusted.decode(text, ArraysBlob, most_items=MAX_ITEMS)
    if blob.form != FORM:
        raise untrusted.Rejected("wrong-shape", f"its form is {blob.form}; this vram reads form {FORM}")
    for address, nbytes, device, framework, name in blob.arrays:
        fits = 0 <= framework < len(blob.frameworks) and 0 <= name < len(blob.names)
        if not fits or not 0 <= address < 1 << 64 or not 0 <= nbytes < 1 << 52 or not -1 <= device < 4096:
            raise untrusted.Rejected("wrong-shape", "an array is impossible")
    return blob


def names_by_address(blob: ArraysBlob) -> dict[int, str]:
    return {address: blob.names[name][:MAX_NAME_LENGTH] for address, _, _, _, name in blob.arrays}


def held_arrays(blob: ArraysBlob, process: int, gpu_of: Callable[[int], int | None]) -> Iterable[HeldArrays]:
    """By name; *gpu_of* knows the view's number of a device of the process."""
    sums: dict[tuple[int, int, int], list[int]] = {}
    for _, nbytes, device, framework, name in blob.arrays:
        total = sums.setdefault((device, framework, name), [0, 0])
        total[0] += 1
        total[1] += nbytes
    for (device, framework, name), (count, nbytes) in sums.items():
        yield HeldArrays(
            process=process,
            gpu=None if device < 0 else gpu_of(device),
            framework=blob.frameworks[framework][:MAX_NAME_LENGTH],
            name=blob.names[name][:MAX_NAME_LENGTH],
            count=count,
            nbytes=nbytes,
        )

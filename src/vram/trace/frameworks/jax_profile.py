"""JAX's profile of live buffers: a gzipped pprof file, read within limits.

The format is protocol buffers (github.com/google/pprof, proto/profile.proto): fields of a number and a wire
type, of which a profile uses two, integers and lengths. Only what is needed here is read.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from vram import untrusted
from vram.model.trace import CallStack, Frame
from vram.trace.frameworks.torch_history import DEEPEST, MAX_NAME_LENGTH, unpacked_limit

MAX_NBYTES = 64 << 20
MAX_FIELDS = 500_000
_GZIP = 16 + zlib.MAX_WBITS

# Numbers of fields, in Profile, Sample, Label, Location, Line and Function.
_SAMPLE, _LOCATION, _FUNCTION, _STRING = 2, 4, 5, 6
_SAMPLE_LOCATION, _SAMPLE_VALUE, _SAMPLE_LABEL = 1, 2, 3
_LABEL_KEY, _LABEL_TEXT = 1, 2
_LOCATION_ID, _LOCATION_LINE = 1, 4
_LINE_FUNCTION, _LINE_LINE = 1, 2
_FUNCTION_ID, _FUNCTION_NAME, _FUNCTION_FILE = 1, 2, 4


class Buffers(Struct, frozen=True):
    """Live buffers, or compiled programs, that one stack made on one GPU."""

    stack: CallStack
    gpu: int | None
    kind: str
    """"buffer" or "executable", in JAX's words."""
    count: int
    nbytes: int


def decode(data: bytes) -> list[Buffers]:
    """What the profile lists. Raises ``untrusted.Rejected``."""
    unpacking = zlib.decompressobj(_GZIP)
    try:
        plain = unpacking.decompress(data, min(MAX_NBYTES, unpacked_limit(len(data))))
    except zlib.error as error:
        raise untrusted.Rejected("wrong-shape", f"it cannot be unpacked: {error}") from error
    if not unpacking.eof:
        raise untrusted.Rejected("too-large", "it is larger than allowed, or cut short")
    try:
        return list(_samples(_Profile(plain)))
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise untrusted.Rejected("wrong-shape", "it refers to something that is not in it") from error


class _Profile:
    """The messages of a profile by kind; samples are not yet read further."""

    def __init__(self, data: bytes) -> None:
        self._left = MAX_FIELDS
        _, parts = self.message(data)
        self.samples = parts[_SAMPLE]
        self.texts = [each.decode("utf-8", "replace") for each in parts[_STRING]]
        functions: dict[int, tuple[int, int]] = {}
        for each in parts[_FUNCTION]:
            numbers, _ = self.message(each)
            names = numbers.get(_FUNCTION_NAME, 0), numbers.get(_FUNCTION_FILE, 0)
            functions[numbers.get(_FUNCTION_ID, 0)] = names
        self.frames: dict[int, tuple[Frame, ...]] = {}
        for each in parts[_LOCATION]:
            numbers, inside = self.message(each)
            lines = [self.message(line)[0] for line in inside[_LOCATION_LINE]]
            self.frames[numbers.get(_LOCATION_ID, 0)] = tuple(
                self._frame(functions[line.get(_LINE_FUNCTION, 0)], line.get(_LINE_LINE, 0)) for line in lines
            )

    def _frame(self, names: tuple[int, int], line: int) -> Frame:
        function, file = names
        name, path = self.texts[function][:MAX_NAME_LENGTH], self.texts[file][:MAX_NAME_LENGTH]
        return Frame("python", name, path, line if line < 1 << 31 else 0)

    def message(self, data: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
        """By the number of a field: its last integer, and all that it has of bytes."""
        numbers: dict[int, int] = {}
        parts: dict[int, list[bytes]] = defaultdict(list)
        for number, value in self.fields(data):
            if isinstance(value, int):
                numbers[number] = value
            else:
                parts[number].append(value)
        return numbers, parts

    def fields(self, data: bytes) -> Iterator[tuple[int, int | bytes]]:
        """(number, value) of each field of a message."""
        at, end = 0, len(data)
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise untrusted.Rejected("too-many", f"it has more than {MAX_FIELDS} fields")
            key, at = _integer(data, at)
            wire = key & 7
            if wire == 0:
                value, at = _integer(data, at)
                yield key >> 3, value
                continue
            if wire == 2:
                length, at = _integer(data, at)
            elif wire in (1, 5):
                length = 8 if wire == 1 else 4
            else:
                raise untrusted.Rejected("wrong-shape", "it is no profile")
            if length > end - at:
                raise untrusted.Rejected("cut-short", "it is truncated")
            if wire == 2:
                yield key >> 3, data[at : at + length]
            at += length


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise untrusted.Rejected("cut-short", "it is truncated")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise untrusted.Rejected("wrong-shape", "a number has more than ten bytes")


def _samples(profile: _Profile) -> Iterator[Buffers]:
    for data in profile.samples:
        locations: list[int] = []
        values: list[int] = []
        labels: dict[str, str] = {}
        for number, value in profile.fields(data):
            if number == _SAMPLE_LABEL and isinstance(value, bytes):
                label, _ = profile.message(value)
                labels[profile.texts[label.get(_LABEL_KEY, 0)]] = profile.texts[label.get(_LABEL_TEXT, 0)]
            elif number in (_SAMPLE_LOCATION, _SAMPLE_VALUE):
                (locations if number == _SAMPLE_LOCATION else values).extend(
                    islice(_repeated(value), DEEPEST)
                )
        count, nbytes = [*values, 0, 0][:2]
        if max(count, nbytes) >= 1 << 63:
            continue  # negative: nothing that is live
        device = labels.get("device", "")
        if "cpu" in device.lower():
            continue
        frames = (frame for each in locations for frame in profile.frames.get(each, ()))
        stack = CallStack(tuple(islice(frames, DEEPEST)))
        yield Buffers(stack, _gpu(device), labels.get("kind", "buffer"), count, nbytes)


def _repeated(value: int | bytes) -> Iterator[int]:
    """A repeated number, which may come packed."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _integer(value, at)
        yield number


def _gpu(device: str) -> int | None:
    """The number in JAX's name of a device: "cuda:1", "CudaDevice(id=1)"."""
    found = re.search(r"(\d{1,4})\D*$", device)
    return int(found.group(1)) if found else None

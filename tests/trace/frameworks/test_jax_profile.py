"""JAX's profile: a pprof file, written here by hand."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable

import pytest

from vram.trace.frameworks.jax_profile import MAX_NBYTES, decode
from vram.untrusted import Rejected


def number(value: int) -> bytes:
    """As protocol buffers write it: seven bits at a time, the lowest first."""
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def integer(field: int, value: int) -> bytes:
    return number(field << 3) + number(value)


def message(field: int, data: bytes) -> bytes:
    return number(field << 3 | 2) + number(len(data)) + data


TEXTS = (
    "",
    "kind",
    "buffer",
    "device",
    "cuda:1",
    "train",
    "/app/train.py",
    "TFRT_CPU_0",
    "executable",
    "main",
)


def function(identity: int, name: str, file: str = "/app/train.py") -> bytes:
    names = integer(2, TEXTS.index(name)) + integer(4, TEXTS.index(file))
    return message(5, integer(1, identity) + names)


def location(identity: int, *lines: tuple[int, int]) -> bytes:
    said = (message(4, integer(1, of) + integer(2, line)) for of, line in lines)
    return message(4, integer(1, identity) + b"".join(said))


def label(key: str, text: str) -> bytes:
    return message(3, integer(1, TEXTS.index(key)) + integer(2, TEXTS.index(text)))


def sample(
    locations: list[int], count: int, nbytes: int, device: str = "cuda:1", kind: str = "buffer"
) -> bytes:
    where = message(1, b"".join(map(number, locations)))  # packed
    values = integer(2, count) + integer(2, nbytes)  # not packed
    return message(2, where + values + label("kind", kind) + label("device", device))


def profile(*parts: bytes) -> bytes:
    places = function(1, "train") + function(2, "main") + location(1, (1, 24)) + location(2, (2, 35))
    texts = b"".join(message(6, text.encode()) for text in TEXTS)
    return gzip.compress(b"".join(parts) + places + texts)


def test_buffers_have_their_stack_their_gpu_and_their_bytes() -> None:
    (found,) = decode(profile(sample([1, 2], 12, 36 << 20)))
    assert [(frame.function, frame.file, frame.line) for frame in found.stack.frames] == [
        ("train", "/app/train.py", 24),
        ("main", "/app/train.py", 35),
    ]
    assert (found.gpu, found.kind, found.count, found.nbytes) == (1, "buffer", 12, 36 << 20)


def test_compiled_programs_are_told_apart() -> None:
    (found,) = decode(profile(sample([], 1, 5, kind="executable")))
    assert (found.kind, found.stack.frames) == ("executable", ())


def test_buffers_in_host_memory_are_left_out() -> None:
    assert decode(profile(sample([1], 1, 5, device="TFRT_CPU_0"))) == []


def test_a_field_that_is_new_is_skipped() -> None:
    more = integer(99, 5) + number(98 << 3 | 1) + b"8 bytes." + number(97 << 3 | 5) + b"four"
    assert len(decode(profile(more, sample([1], 1, 5)))) == 1


# Packed when they are needed: some are large.
BAD = {
    "empty": lambda: b"",
    "not packed": lambda: b"plain",
    "cut": lambda: profile(sample([1], 1, 5))[:-12],
    "cut inside": lambda: gzip.compress(message(6, b"text")[:-1]),
    "large": lambda: gzip.compress(bytes(MAX_NBYTES + 1), 1),
    "a group": lambda: gzip.compress(number(3 << 3 | 3)),
    "a number that never ends": lambda: gzip.compress(b"\xff" * 30),
    "a length beyond the end": lambda: gzip.compress(number(6 << 3 | 2) + number(2**63)),
    "a text that is not there": lambda: profile(message(2, message(3, integer(1, 999)))),
    "a function that is not there": lambda: profile(location(9, (999, 1))),
    "fields without end": lambda: gzip.compress(b"\x08\x00" * 500_001, 1),
    "another format": lambda: zlib.compress(b"plain"),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_what_is_no_profile_is_refused(data: Callable[[], bytes]) -> None:
    with pytest.raises(Rejected):
        decode(data())


def test_a_location_that_is_not_there_is_an_empty_place() -> None:
    (found,) = decode(profile(sample([77], 1, 5)))
    assert found.stack.frames == ()

"""What the process that reads NVML says to the one that started it, message by message."""

from __future__ import annotations

import os
from collections.abc import Iterator

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from vram.model.observation import Observation


class Calling(Struct, tag="calling", array_like=True):
    """The next call. If nothing follows, this is the one that never returned."""

    probe: str
    gpu: int | None
    call: str


class Found(Struct, tag="found", array_like=True):
    """How many GPUs there are."""

    gpus: int


class Saw(Struct, tag="saw", array_like=True):
    """One statement."""

    observation: Observation


class Meanwhile(Struct, tag="meanwhile", array_like=True):
    """A statement that counts only if the better one that should follow never comes."""

    observation: Observation


class Done(Struct, tag="done", array_like=True):
    """All was said; without it the reader died."""


Message = Calling | Found | Saw | Meanwhile | Done

_encode = Encoder().encode
_decoder: Decoder[Message] = Decoder(Message)


def send(pipe: int, message: Message) -> None:
    body = _encode(message)
    frame = len(body).to_bytes(4, "little") + body
    while frame:
        frame = frame[os.write(pipe, frame) :]


class Inbox:
    """Puts messages together from what a pipe hands out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, part: bytes) -> Iterator[Message]:
        self._bytes += part
        while len(self._bytes) >= 4:
            end = 4 + int.from_bytes(self._bytes[:4], "little")
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[4:end])
            del self._bytes[:end]
            yield _decoder.decode(body)

"""What the process that reads NVML says to the one that started it, message by message.

Plain tuples and dictionaries by ``marshal``: both ends are this very program, and the reader
starts before anything larger is imported.

    calling  probe, gpu, call     the next call; if nothing follows, it never returned
    found    gpus                 how many there are
    saw      observation          one statement, as the fields of an Observation
    meanwhile observation         one that counts only if the better one never comes
    done                          all was said; without it the reader died
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Iterator
from typing import Any

Message = tuple[Any, ...]


def send(pipe: int, *message: Any) -> None:
    body = marshal.dumps(message)
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
            yield marshal.loads(body)

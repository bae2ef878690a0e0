"""Logs that a command reads: a file, compressed or not, or what is piped or pasted."""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from vram.errors import BadInput, UsageError

_GZIP = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
PASTE = "Paste the message or the log, then press Enter and Ctrl-D:"


class Log(io.RawIOBase):
    """A log being read: counts its bytes, and says in our own words what goes wrong on the way."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._ended = False
        self.nbytes = 0

    def read(self, most: int = -1) -> bytes:
        if self._ended:
            return b""
        try:
            portion = self._stream.read(most)
        except EOFError as error:
            raise BadInput(f"{self._name} is cut short: its gzip stream has no end") from error
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"{self._name} cannot be read: {reason}") from error
        self.nbytes += len(portion)
        # A terminal goes on after its end of file: asked again, it would want a second Ctrl-D.
        self._ended = len(portion) < most
        return portion


class _Utf16(io.RawIOBase):
    """A log in UTF-16, as Windows PowerShell writes one for ``>``, read as UTF-8."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def read(self, most: int = -1) -> bytes:
        """Exactly *most* bytes, fewer at the end only: whoever reads takes fewer for the end."""
        raw = b"more"
        while raw and len(self._ready) < most:
            raw = self._stream.read(most)
            self._ready += self._decoder.decode(raw, final=not raw).encode("utf-8", "replace")
        portion, self._ready = self._ready[:most], self._ready[most:]
        return portion


@contextmanager
def open_log(path: str) -> Iterator[Log]:
    """Open *path*; - is standard input."""
    if path == "-":
        yield Log(_unpacked(_standard_input()), "standard input")
        return
    if not path:
        raise UsageError("the name of the log is empty", hint=_hint(path))
    try:
        stream = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint=_hint(path)) from error
    with stream:
        yield Log(_unpacked(stream), path)


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="name a file")
    if sys.stdin.isatty():
        print(PASTE, file=sys.stderr, flush=True)
    return cast("io.BufferedReader", sys.stdin.buffer)


def _unpacked(stream: io.BufferedReader) -> BinaryIO:
    try:
        first = b"" if stream.isatty() else stream.peek(2)[:2]
    except OSError:  # met again, and told, by whoever reads
        first = b""
    if first in _UTF16:
        return cast("BinaryIO", _Utf16(stream))
    if first != _GZIP:
        return cast("BinaryIO", stream)
    import gzip

    return cast("BinaryIO", gzip.GzipFile(fileobj=stream))


def _hint(path: str) -> str:
    if os.path.isdir(path):
        return "name a file in it"
    return "name a log, or pipe one in: tail -n 500 train.log | vram oom"

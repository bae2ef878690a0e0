"""Logs to read: a file, compressed or not, or what is piped or pasted, which may never end."""

from __future__ import annotations

import codecs
import io
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from vram.errors import BadInput, UsageError

PASTE = "Paste the message or the log, then press Enter and Ctrl-D:"
# After so long, a user who waits for a pipe is told what it is waiting for.
PATIENCE_S = 5.0
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# What unpacking an xz file may take: xz -9 asks for 65 MiB.
MAX_FOR_XZ = 256 << 20
PORTION = 64 << 10
# By the first bytes: what it was compressed with, and the command that unpacks it.
_UNREAD = (
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
    (b"PK\x03\x04", "zip", "unzip -p"),
    (b"7z\xbc\xaf\x27\x1c", "7z", "7z x -so"),
)


class CountedLog(io.RawIOBase):
    """A log being read: counts its bytes; raises BadInput where it cannot be read.

    What is no file may never end: SIGINT then ends the reading, and ``was_stopped`` says so.
    """

    def __init__(self, stream: io.BufferedReader, name: str, *, may_be_endless: bool = False) -> None:
        self._raw = stream
        self._text: Any = None
        self._errors: tuple[type[Exception], ...] = (OSError, ValueError)
        self._is_reading = False
        self._may_be_endless = may_be_endless
        self._ended = False
        self.name = name
        self.nbytes = 0
        self.was_stopped = False
        self.has_nulls = False

    def read(self, most: int = -1) -> bytes:
        if self._ended or self.was_stopped:
            return b""
        try:
            portion = self._portion(most)
        except EOFError as error:
            raise BadInput(f"{self.name} is truncated: its compressed stream is incomplete") from error
        except self._errors as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise BadInput(f"cannot read {self.name}: {reason}") from error
        self.has_nulls = self.has_nulls or b"\0" in portion[:4096]
        self.nbytes += len(portion)
        return portion

    def _portion(self, most: int) -> bytes:
        try:
            self._is_reading = True
            if self._text is None:
                self._text, errors = _unpack(self._raw, self.name)
                self._errors += errors
            # What a pipe has now: a read that waits for more would lose it when it is interrupted.
            read = getattr(self._text, "read1", None) if self._may_be_endless else None
            portion: bytes = read(most) if read else self._text.read(most)
        except KeyboardInterrupt:
            if not self._may_be_endless:
                raise
            self.was_stopped = True
            return b""
        finally:
            self._is_reading = False
        # A terminal goes on after its end of file: asked again, it would want a second Ctrl-D.
        self._ended = not portion if read else len(portion) < most
        return portion

    def stop(self, number: int, frame: FrameType | None) -> None:
        """End the reading; to be called by SIGINT."""
        self.was_stopped = True
        if self._is_reading:
            raise KeyboardInterrupt


class _Utf16(io.RawIOBase):
    """A log in UTF-16, as Windows PowerShell writes one for ``>``, read as UTF-8."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        self._ready = b""

    def read(self, most: int = -1) -> bytes:
        """Exactly *most* bytes, fewer at the end only: the reader takes fewer for the end."""
        raw = b"more"
        while raw and len(self._ready) < most:
            raw = self._stream.read(most)
            self._ready += self._decoder.decode(raw, final=not raw).encode("utf-8", "replace")
        portion, self._ready = self._ready[:most], self._ready[most:]
        return portion


class _Xz(io.RawIOBase):
    """A log compressed with xz, in one part or several.

    The file itself says how much memory unpacking takes, which may be 4 GiB: above a limit it is refused.
    """

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._decoder = _xz_decoder()
        self._has_begun = False  # the part that is read now
        self._waiting = b""

    def read(self, most: int = -1) -> bytes:
        """Exactly *most* bytes, fewer at the end only: the reader takes fewer for the end."""
        ready = bytearray()
        while len(ready) < most:
            if self._decoder.eof:
                self._waiting, self._has_begun = self._decoder.unused_data, False
                self._decoder = _xz_decoder()
            if self._decoder.needs_input and not self._waiting:
                self._waiting = self._stream.read(PORTION)
                if not self._waiting and self._has_begun:
                    raise EOFError
                if not self._waiting:
                    break
            if not self._has_begun:
                self._waiting = self._waiting.lstrip(b"\0")  # between parts there may be padding
            portion, self._waiting = self._waiting, b""
            self._has_begun = self._has_begun or bool(portion)
            ready += self._decoder.decompress(portion, most - len(ready))
        return bytes(ready)


def _xz_decoder() -> Any:
    from lzma import FORMAT_XZ, LZMADecompressor

    return LZMADecompressor(FORMAT_XZ, memlimit=MAX_FOR_XZ)


@contextmanager
def open_log(path: str) -> Iterator[CountedLog]:
    """Open *path*; - is standard input."""
    if path == "-":
        stream = _standard_input()
        is_file = _is_regular(stream)
        with _patience("standard input", is_needed=not is_file and not stream.isatty()):
            yield from _read_log(stream, "standard input", is_file)
        return
    if not path:
        raise UsageError("file name is empty", hint=_hint(path))
    # Opening a pipe without a writer waits, too.
    with _patience(path, is_needed=os.path.exists(path) and not os.path.isfile(path)):
        try:
            file = open(path, "rb")  # noqa: SIM115
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}", hint=_hint(path)) from error
        with file:
            yield from _read_log(file, path, _is_regular(file))


def _read_log(stream: io.BufferedReader, name: str, is_file: bool) -> Iterator[CountedLog]:
    log = CountedLog(stream, name, may_be_endless=not is_file)
    if is_file:
        yield log
        return
    before = signal.signal(signal.SIGINT, log.stop)
    try:
        yield log
    finally:
        signal.signal(signal.SIGINT, before)


def _is_regular(stream: io.BufferedReader) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # a stream without a file, as tests have
        return True


@contextmanager
def _patience(name: str, *, is_needed: bool) -> Iterator[None]:
    """Say after a while what is waited for."""
    if not is_needed:
        yield
        return
    from threading import Timer

    text = f"vram: reading {name} until it ends; Ctrl-C shows what was found so far"
    timer: Any = Timer(PATIENCE_S, print, (text,), {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="name a file")
    if sys.stdin.isatty():
        print(PASTE, file=sys.stderr, flush=True)
    return cast("io.BufferedReader", sys.stdin.buffer)


def _unpack(stream: io.BufferedReader, name: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """*stream* as text, however it is compressed or encoded, and what it raises where it is damaged."""
    try:
        first = b"" if stream.isatty() else stream.peek(6)[:6]
    except OSError:  # met again, and reported, when it is read
        first = b""
    for beginning, kind, command in _UNREAD:
        if first.startswith(beginning):
            raise BadInput(f"{name} is compressed with {kind}", hint=f"{command} FILE | vram oom")
    if first[:2] in _UTF16:
        return _Utf16(stream), ()
    if first.startswith(b"\x1f\x8b"):
        import gzip
        import zlib

        return gzip.GzipFile(fileobj=stream), (zlib.error,)
    if first.startswith(b"\xfd7zXZ\x00"):
        import lzma

        return _Xz(stream), (lzma.LZMAError,)
    if first.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(stream), ()
    return stream, ()


def _hint(path: str) -> str:
    if os.path.isdir(path):
        return "name a file in it"
    return "name a log, or pipe one in: tail -n 500 train.log | vram oom"

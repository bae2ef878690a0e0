"""Reads what others wrote: answers of processes, agents, journals, plans, snapshots, connection files.

Its author may want to harm its reader. So every read here has a limit in bytes and, where it
waits, an absolute deadline; every decoding has limits on items, depth and integers. Whatever is
wrong becomes one exception, ``Rejected``, with a code; nothing else is raised.
"""

from __future__ import annotations

import os
import re
import select
import stat
import time
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from vram.errors import BadInput

if TYPE_CHECKING:
    from socket import socket

Code = Literal[
    "cut-short",  # it ends before its end
    "ended",  # the process that should have answered has ended
    "late",  # the deadline passed
    "not-a-file",  # a folder, a device or a pipe where a plain file is expected
    "not-json",
    "not-ours",  # another user owns it, or could have changed it
    "not-text",  # not UTF-8
    "number-too-large",
    "too-deep",
    "too-large",
    "too-many",
    "unreadable",  # the kernel refused
    "wrong-shape",
]

MAX_ITEMS = 1_000_000

_PORTION_NBYTES = 1 << 18
_MIN_INTEGER, _MAX_INTEGER = -(1 << 63), (1 << 64) - 1
_MIN_DIGITS, _MAX_DIGITS = len(str(1 << 63)), len(str(_MAX_INTEGER))  # of those in question

_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
# Of a text without escaped quotes. An open string reaches to the end: nothing is tried twice.
_STRING = re.compile(rb'"[^"]*(?:"|\Z)')
_LONG_NUMBER = re.compile(rb"(?<![0-9.])(-?)([0-9]{%d,})([.eE]?)" % _MIN_DIGITS)
# What msgspec quotes where a value is none of those that are known; what lies behind it is the place.
_QUOTED_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `\$[^`]*`\Z|\Z)", re.DOTALL)

Shape = TypeVar("Shape")


class Rejected(BadInput):
    """What was read is not used. ``code`` tells programs why, the message people."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Code = code


def decode(data: bytes, kind: type[Shape], *, most_items: int = MAX_ITEMS) -> Shape:
    """Decode JSON into *kind*.

    *most_items* bounds the objects, lists and members together, and so the memory that a small text
    can be made to take. Integers are those of 64 bits, signed or not. No message quotes anything of *data*:
    the user who reads it may not be permitted to read the file that it comes from.
    """
    if data.count(b",") + data.count(b"{") + data.count(b"[") > most_items:
        raise Rejected("too-many", f"it has more than {most_items} items")
    _require_small_integers(data)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise Rejected("wrong-shape", _QUOTED_VALUE.sub(r"\1", str(error))) from error
    except msgspec.DecodeError as error:
        truncated = "truncated" in str(error)
        raise Rejected("cut-short" if truncated else "not-json", str(error)) from error
    except UnicodeDecodeError as error:
        raise Rejected("not-text", f"it is not UTF-8 at byte {_first_not_text(data)}") from error
    except RecursionError as error:
        raise Rejected("too-deep", "it is nested too deeply") from error


def read_file(
    path: str,
    *,
    nbytes: int,
    dir_fd: int | None = None,
    owner: int | None = None,
    follow: bool = False,
    pipes: bool = False,
) -> bytes:
    """The whole of a plain file of at most *nbytes*.

    With *owner* it must be that user's, and no other may change it. A link is followed only where
    *follow* says so. *pipes* also takes pipes, if they are ours, and devices; otherwise opening and
    reading never wait for another process.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        file = os.open(path, flags, dir_fd=dir_fd)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise Rejected("unreadable", getattr(error, "strerror", None) or str(error)) from error
    try:
        _require_kind(os.fstat(file), owner, pipes)
        os.set_blocking(file, True)
        return _read_all(file, nbytes)
    except OSError as error:
        raise Rejected("unreadable", error.strerror or str(error)) from error
    finally:
        os.close(file)


def read_stream(descriptor: int, *, nbytes: int) -> bytes:
    """Everything up to the end of an open file or pipe, of at most *nbytes*; waits for its writer."""
    try:
        return _read_all(descriptor, nbytes)
    except OSError as error:
        raise Rejected("unreadable", error.strerror or str(error)) from error


def receive(
    source: int | socket,
    *,
    nbytes: int,
    until: float,
    end: bytes | None = b"\n",
    pidfd: int | None = None,
) -> bytes:
    """What comes through a pipe or socket up to *end*, or up to its closing where *end* is None.

    *until* is a time of ``time.monotonic()`` that nothing extends. Once the process of *pidfd* has
    ended and nothing more is there to read, waiting ends too. Descriptors that are sent along are
    closed by the kernel.
    """
    if isinstance(source, int):
        descriptor = source
        os.set_blocking(descriptor, False)
    else:
        descriptor = source.fileno()
        source.setblocking(False)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if pidfd is not None:
        waiting.register(pidfd, select.POLLIN)
    heard = bytearray()
    while True:
        part = _portion(source)
        if part:
            heard += part
            if len(heard) > nbytes:
                raise Rejected("too-large", f"it is longer than {_in_words(nbytes)}")
            if end is not None and heard.endswith(end):
                return bytes(heard)
        elif part is not None:
            if end is None:
                return bytes(heard)
            raise Rejected("cut-short", "it is truncated")
        if time.monotonic() >= until:
            raise Rejected("late", "it was not complete in time")
        if part is None:
            ready = dict(waiting.poll(max(0.0, until - time.monotonic()) * 1000))
            if not ready:
                raise Rejected("late", "it was not complete in time")
            if descriptor not in ready:
                raise Rejected("ended", "the process has exited")


def _first_not_text(data: bytes) -> int:
    """Where the first byte is that is not UTF-8: the decoder counts from the beginning of a string."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def _portion(source: int | socket) -> bytes | None:
    """What is there to read; nothing at the end, None where nothing has come yet."""
    try:
        if isinstance(source, int):
            return os.read(source, _PORTION_NBYTES)
        return source.recv(_PORTION_NBYTES)
    except BlockingIOError:
        return None
    except OSError as error:  # the other side was killed, or reset the connection
        raise Rejected("cut-short", error.strerror or str(error)) from error


def _require_small_integers(data: bytes) -> None:
    """Refuse integers beyond 64 bits: Python computes with them, what it hands them to does not."""
    if b"0" * _MIN_DIGITS not in data.translate(_DIGITS_AS_ZERO):
        return
    # Not in the pattern of a string: it would keep a place to return to for each of a million escapes.
    without_escapes = data.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    for sign, digits, fraction in _LONG_NUMBER.findall(_STRING.sub(b'""', without_escapes)):
        if fraction:
            continue
        number = int(digits) if len(digits) <= _MAX_DIGITS else _MAX_INTEGER + 1
        if not _MIN_INTEGER <= (-number if sign else number) <= _MAX_INTEGER:
            raise Rejected("number-too-large", "it has an integer of more than 64 bits")


def _require_kind(about: os.stat_result, owner: int | None, pipes: bool) -> None:
    if not stat.S_ISREG(about.st_mode):
        ours = about.st_uid == os.geteuid() or not stat.S_ISFIFO(about.st_mode)
        if not pipes or stat.S_ISDIR(about.st_mode):
            raise Rejected("not-a-file", "it is not a regular file")
        if not ours:
            raise Rejected("not-ours", "it is a pipe of another user")
    if owner is not None and (about.st_uid != owner or about.st_mode & 0o022):
        raise Rejected("not-ours", "another user owns it or could have changed it")


def _read_all(file: int, nbytes: int) -> bytes:
    parts: list[bytes] = []
    left = nbytes + 1
    while left and (part := os.read(file, min(left, _PORTION_NBYTES))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise Rejected("too-large", f"it is larger than {_in_words(nbytes)}")
    return b"".join(parts)


def _in_words(nbytes: int) -> str:
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"

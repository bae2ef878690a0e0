"""One value or folder of sysfs: read whole, or the reason why not."""

from __future__ import annotations

import errno
import os
import re
from typing import NamedTuple

from vram.model.observation import Status

_LONGEST = 64 * 1024
_LARGEST = 1 << 62
_NUMBER = re.compile(rb"\d{1,20}|0x[0-9a-fA-F]{1,16}")
_STATUS: dict[int | None, Status] = {
    errno.ENOENT: "unsupported",
    errno.ENOTDIR: "unsupported",
    errno.EOPNOTSUPP: "unsupported",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ENODEV: "lost",
    errno.ENXIO: "lost",
    errno.EIO: "lost",
}


class Reading(NamedTuple):
    """``nbytes`` None: unknown, and ``status`` with ``message`` says why."""

    nbytes: int | None
    status: Status = "ok"
    message: str | None = None


def read_bytes(path: str) -> bytes:
    """The file's contents; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _LONGEST)
    finally:
        os.close(descriptor)


def read_word(path: str) -> bytes | None:
    """The contents without what surrounds them; None where there are none."""
    try:
        return read_bytes(path).strip(b" \t\r\n\0") or None
    except OSError:
        return None


def listing(folder: str) -> list[str] | None:
    """The names in *folder*; None where it cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return None


def asleep(folder: str) -> bool:
    """The device in *folder* is suspended: some of its files would wake it."""
    return read_word(f"{folder}/power/runtime_status") == b"suspended"


def read_nbytes(path: str) -> Reading:
    """A size in bytes; what cannot be one is a failure, with its name."""
    name = os.path.basename(path)
    try:
        raw = read_bytes(path).strip()
    except OSError as error:
        status = _STATUS.get(error.errno, "failed")
        return Reading(None, status, f"{name} cannot be read: {error.strerror}")
    nbytes = int(raw, 0) if _NUMBER.fullmatch(raw) and not _octal(raw) else None
    if nbytes is None or nbytes >= _LARGEST:
        return Reading(None, "failed", f"{name} is no size")
    return Reading(nbytes)


def _octal(raw: bytes) -> bool:
    return len(raw) > 1 and raw[:1] == b"0" and raw[1:2] != b"x"

"""Files that a command writes: whole or not at all, over what was there before."""

from __future__ import annotations

import os
from contextlib import suppress
from tempfile import mkstemp

from vram.errors import UsageError


def write_file(path: str, contents: bytes, *, mode: int = 0o644) -> None:
    """Write *contents* beside *path* first, then put them in its place in one move."""
    try:
        _write(path, contents, mode)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="name a file in a folder that you may write to"
        ) from error


def _write(path: str, contents: bytes, mode: int) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        # A device or a pipe cannot be replaced, only written to.
        with open(path, "wb") as stream:
            stream.write(contents)
        return
    folder, name = os.path.split(os.path.realpath(path))
    descriptor, temporary = mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(contents)
            os.fchmod(stream.fileno(), mode)
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise

"""Files that a command writes: whole or not at all, over what was there before."""

from __future__ import annotations

import os
from contextlib import suppress

from vram.errors import UsageError


def write_file(path: str, contents: bytes) -> None:
    """Write *contents* beside *path* first, then put them in its place in one move."""
    try:
        _write(path, contents)
    except OSError as error:
        hint = "name a file in a folder that you may write to"
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint=hint) from error


def write_files(folder: str, contents: dict[str, bytes]) -> None:
    """Write files by their names into *folder*, which is made where it is missing."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        hint = "name a folder that you may write to"
        raise UsageError(f"{folder} cannot be made: {error.strerror}", hint=hint) from error
    for name, data in contents.items():
        write_file(os.path.join(folder, name), data)


def _write(path: str, contents: bytes) -> None:
    if os.path.exists(path) and not os.path.isfile(path):
        # A device or a pipe cannot be replaced, only written to.
        with open(path, "wb") as stream:
            stream.write(contents)
        return
    target = os.path.realpath(path)
    fresh = f"{target}.{os.getpid()}.new"
    try:
        with open(fresh, "xb") as stream:
            stream.write(contents)
        os.replace(fresh, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise

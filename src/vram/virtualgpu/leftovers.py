"""Folders whose maker was killed before it could remove them: found and removed by the next one.

A maker holds a lock on its folder while it lives (the kernel drops it with the process). An
unlocked folder is left over, unless somebody still runs in it or it was meant to stay.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from vram.virtualgpu import FOLDER_VARIABLE

KEPT = "kept"


def claim(folder: Path) -> int | None:
    """Take the lock that says "its maker lives"; None where another has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def sweep(parent: Path, prefix: str) -> None:
    """Remove what is left over in *parent*. What cannot be looked at is left alone."""
    candidates = [folder for folder in parent.glob(f"{prefix}*") if _may_be_left(folder)]
    in_use = set(_folders_in_use()) if candidates else set()
    for folder in candidates:
        if str(folder) not in in_use:
            _remove(folder)


def _may_be_left(folder: Path) -> bool:
    # The config is written after the lock is taken: a folder without one may be in the making.
    try:
        return folder.lstat().st_uid == os.geteuid() and set(os.listdir(folder)) >= {"config", "dev"}
    except OSError:
        return False


def _remove(folder: Path) -> None:
    try:
        descriptor = claim(folder)
    except OSError:
        return
    if descriptor is None:
        return
    if not (folder / KEPT).exists():
        shutil.rmtree(folder, ignore_errors=True)
    os.close(descriptor)


def _folders_in_use() -> Iterator[str]:
    """The folders that running processes of ours were started with."""
    variable = f"{FOLDER_VARIABLE}=".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        for entry in environment.split(b"\0"):
            if entry.startswith(variable):
                yield os.fsdecode(entry.removeprefix(variable))

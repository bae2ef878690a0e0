"""What policies must not forget, as a file in the service's state folder: replaced whole, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from vram import untrusted
from vram.errors import AuditUnavailable
from vram.policy.decision import PolicyMemory
from vram.reclaim import state

FILE = "policies.json"
_MAX_NBYTES = 8 << 20
_SCHEMA = 1


def load() -> PolicyMemory:
    """What was saved; nothing where there is no file. Raises Rejected where it cannot be used."""
    folder = state.open_folder()
    try:
        if not _exists(folder):
            return PolicyMemory()
        data = untrusted.read_file(FILE, nbytes=_MAX_NBYTES, dir_fd=folder, owner=os.geteuid())
    finally:
        os.close(folder)
    memory = untrusted.decode(data, PolicyMemory)
    if memory.schema != _SCHEMA:
        raise untrusted.Rejected("wrong-shape", f"it has version {memory.schema}")
    return memory


def save(memory: PolicyMemory) -> None:
    """Put it on the disk. Raises AuditUnavailable, and then nothing may be done."""
    fresh = f"{FILE}.new"
    folder = state.open_folder()
    try:
        file = state.open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(file, "wb") as stream:
            stream.write(msgspec.json.encode(memory))
            stream.flush()
            os.fsync(file)
        os.replace(fresh, FILE, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise AuditUnavailable(
            f"cannot save what policies did: {error.strerror}", hint="without that, caps would be forgotten"
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=folder)
        os.close(folder)


def set_aside() -> None:
    """Keep a file that cannot be used under another name."""
    folder = state.open_folder()
    try:
        with suppress(OSError):
            os.replace(FILE, f"set-aside-{FILE}", src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


def _exists(folder: int) -> bool:
    try:
        os.stat(FILE, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True

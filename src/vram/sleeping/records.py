"""What a waker must not forget: which programs sleep and wake, and how. One file for each machine.

Whether a program is asleep is in the journal of parked processes and known to the driver; here is what its
owner wants of it, and the bytes that it had left unread before it slept, which are no request.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec
from msgspec import Struct

from vram import untrusted
from vram.errors import AuditUnavailable
from vram.host.ports import Host
from vram.model.parking import GpuShare
from vram.model.plan import Target
from vram.model.sleeping import SLEEPING_SCHEMA, SleepOptions, WakeReason
from vram.reclaim import state
from vram.reclaim.journal import file_name_part
from vram.units import MIB

VIRTUAL_GPU = "VRAM_VIRTUAL_GPU"
_MAX_NBYTES = 16 * MIB
MAX_LOG = MIB


class SleepRecord(Struct, frozen=True, kw_only=True):
    """One program. ``ignored``: by pid and descriptor, what it had left unread."""

    targets: tuple[Target, ...]
    shares: tuple[GpuShare, ...]
    options: SleepOptions
    ignored: tuple[tuple[int, int, int], ...] = ()
    wakes: int = 0
    last_wake_s: tuple[float, ...] = ()
    reason: WakeReason | None = None


class SleepRecords(Struct, frozen=True, kw_only=True):
    """All of them, of one boot of one machine."""

    schema: int = SLEEPING_SCHEMA
    boot_id: str
    programs: tuple[SleepRecord, ...] = ()


def name_here(host: Host) -> str:
    """What the files of this machine's waker are called: a home folder may be shared by several.

    A virtual GPU is a machine of its own: its folder's number tells it from the real one, and from others.
    """
    machine = file_name_part(host.facts().name)
    virtual = os.environ.get(VIRTUAL_GPU)
    if not virtual:
        return machine
    try:
        about = os.stat(virtual)
    except OSError:
        return f"{machine}-virtual"
    return f"{machine}-virtual-{about.st_dev:x}-{about.st_ino:x}"


def read(host: Host) -> tuple[SleepRecord, ...]:
    """What a waker of this boot has written; nothing where there is none, or it cannot be used."""
    if not os.path.isdir(state.folder_path()):
        return ()
    folder = state.open_folder()
    try:
        data = untrusted.read_file(_file(host), nbytes=_MAX_NBYTES, dir_fd=folder, owner=os.geteuid())
        found = untrusted.decode(data, SleepRecords)
    except untrusted.Rejected:
        return ()
    finally:
        os.close(folder)
    usable = found.schema == SLEEPING_SCHEMA and found.boot_id == host.limits.boot_id()
    return found.programs if usable else ()


def write(host: Host, programs: tuple[SleepRecord, ...]) -> None:
    """Put them on the disk in place of what was there. Raises AuditUnavailable."""
    folder = state.open_folder()
    name = _file(host)
    fresh = f"{name}.{os.getpid()}.new"
    try:
        file = state.open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(file, "wb") as stream:
            stream.write(msgspec.json.encode(SleepRecords(boot_id=host.limits.boot_id(), programs=programs)))
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        raise AuditUnavailable(
            f"cannot write which programs sleep: {error.strerror}",
            hint="a waker that is killed could not find them again",
        ) from error
    finally:
        with suppress(OSError):
            os.unlink(fresh, dir_fd=folder)
        os.close(folder)


def fields_of(reason: WakeReason | None) -> str:
    """A reason as the log has it: its fields, for people who look for one."""
    if reason is None:
        return ""
    file = reason.file
    about = (file.kind, file.address, f"fd {file.fd}") if file else (reason.signal, reason.detail)
    return " ".join(filter(None, (reason.cause, *about)))


def log(host: Host, line: str) -> None:
    """Add a line to what the waker did and why, which users read; a full disk is no reason to fail."""
    name = f"sleeping-{name_here(host)}.log"
    with suppress(OSError, AuditUnavailable):
        file = state.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.fstat(file).st_size > MAX_LOG:
                os.ftruncate(file, 0)
            os.write(file, f"{host.clock.now()} {line}\n".encode("utf-8", "backslashreplace"))
        finally:
            os.close(file)


def _file(host: Host) -> str:
    return f"sleeping-{name_here(host)}.json"

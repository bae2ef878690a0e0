"""The journal of parked processes: what we moved, or were moving when we died.

One file for each process in the private state folder, on the disk before the driver is
asked and taken away when the process runs again. What really became of a process is the
driver's to say; the journal says whom to ask about.

A claim is a lock on the byte number PID of one more file. It belongs to the open file and
travels with its descriptor, so it lasts while the vram or the keeper that moves the process
lives, and not a moment longer.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType

import msgspec

from vram.errors import AuditUnavailable
from vram.host.ports import Host
from vram.model.ledger import ParkedProcess
from vram.model.parking import PARKED_SCHEMA, Parked
from vram.reclaim import state

_ENTRY = re.compile(r"parked-.+-\d+-\d+\.json", re.ASCII)
_UNFINISHED = re.compile(_ENTRY.pattern + r"\.\d+\.new", re.ASCII)
# A write takes moments. Whether its vram lives cannot be asked: a home folder may be shared.
_ABANDONED_S = 3600.0


class Claim:
    """The right to move one process."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def fileno(self) -> int:
        return self._file


class Journal:
    """The entries of this boot of this machine; a home folder may be shared by several."""

    def __init__(self, host: Host) -> None:
        self.boot_id = host.vitals.boot_id()
        facts = host.facts()
        self.host_name = facts.name
        self.pid_namespace = facts.pid_namespace
        self._proc = host.proc

    def claim(self, pid: int, *, wait: bool = False) -> Claim | None:
        """Take the claim on *pid*; None where somebody is moving that process right now."""
        file = state.open_file(f"parking-{_plain(self.host_name)}.lock", os.O_RDWR | os.O_CREAT)
        whole = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, pid, 1, 0)
        try:
            fcntl.fcntl(file, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, whole)
        except BlockingIOError:
            os.close(file)
            return None
        except BaseException:
            os.close(file)
            raise
        return Claim(file)

    def write(self, entry: Parked) -> None:
        """Put *entry* on the disk, in place of an older one of the same process."""
        name = _name(entry)
        folder = state.open_folder()
        fresh = f"{name}.{os.getpid()}.new"
        try:
            file = state.open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            with open(file, "wb") as stream:
                stream.write(msgspec.json.encode(entry) + b"\n")
                stream.flush()
                os.fsync(file)
            os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)
        except OSError as error:
            raise AuditUnavailable(
                f"the journal of parked processes cannot be written: {error.strerror}",
                hint="vram parks only what it can find again after its own death",
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=folder)
            os.close(folder)

    def remove(self, entry: Parked) -> None:
        folder = state.open_folder()
        try:
            with suppress(FileNotFoundError):
                os.unlink(_name(entry), dir_fd=folder)
        finally:
            os.close(folder)

    def entries(self) -> tuple[Parked, ...]:
        """Everybody whom we moved in this boot and who still lives, oldest first."""
        return tuple(entry for entry in self._of_this_host() if self._is_ours(entry) and self._lives(entry))

    def elsewhere(self) -> tuple[Parked, ...]:
        """What a vram of another PID namespace moved in this boot: its pids may name others here, or
        nobody, so it is neither judged nor touched."""
        return tuple(
            entry
            for entry in self._of_this_host()
            if not self._is_ours(entry) and entry.boot_id == self.boot_id
        )

    def find(self, pid: int) -> Parked | None:
        return next((entry for entry in self.entries() if entry.target.process.pid == pid), None)

    def _of_this_host(self) -> list[Parked]:
        folder = state.open_folder()
        try:
            names = os.listdir(folder)
            _sweep(folder, names)
            read = [_read(folder, name) for name in names if _ENTRY.fullmatch(name)]
        finally:
            os.close(folder)
        found = [entry for entry in read if entry is not None and entry.host == self.host_name]
        return sorted(found, key=lambda entry: (entry.since, entry.target.process.pid))

    def _is_ours(self, entry: Parked) -> bool:
        """Whether its pid means the same process to us; entries of older vrams do not say."""
        return entry.pid_namespace in (None, self.pid_namespace)

    def _lives(self, entry: Parked) -> bool:
        """A process that has ended, be it with the whole machine, left nothing to bring back."""
        seen = self._proc.facts(entry.target.process.pid)
        same = seen is not None and seen[0].started_at == entry.target.process.started_at
        if seen is not None and same and entry.boot_id == self.boot_id and not seen[1].is_dead:
            return True
        self.remove(entry)
        return False


def parked_now(host: Host) -> tuple[ParkedProcess, ...]:
    """Who is parked by this user, for showing: nothing is made, swept or put right by asking."""
    path = state.folder_path()
    try:
        names = [name for name in os.listdir(path) if _ENTRY.fullmatch(name)]
        if not names:
            return ()
        folder = state.open_folder()
    except (OSError, AuditUnavailable):
        return ()
    try:
        read = [_read(folder, name) for name in names]
    finally:
        os.close(folder)
    me, boot_id = host.facts(), host.vitals.boot_id()
    found = [
        entry
        for entry in read
        if entry is not None
        and (entry.host, entry.boot_id) == (me.name, boot_id)
        and entry.pid_namespace in (None, me.pid_namespace)
        and host.proc.started_at(entry.target.process.pid) == entry.target.process.started_at
    ]
    return tuple(
        _shown(entry) for entry in sorted(found, key=lambda each: (each.since, each.target.process.pid))
    )


def _shown(entry: Parked) -> ParkedProcess:
    return ParkedProcess(
        pid=entry.target.process.pid,
        user=entry.target.user,
        command=entry.target.command,
        nbytes=entry.nbytes,
        gpus=tuple(share.gpu for share in entry.shares),
        since=entry.since,
        lent_to=entry.by_pid if entry.purpose == "borrow" else None,
    )


def _name(entry: Parked) -> str:
    process = entry.target.process
    return f"parked-{_plain(entry.boot_id)}-{process.pid}-{process.started_at}.json"


def _plain(word: str) -> str:
    return re.sub(r"[^0-9A-Za-z.-]", "-", word)


def _sweep(folder: int, names: Iterable[str]) -> None:
    """Remove what vrams that died while they wrote left behind."""
    for name in filter(_UNFINISHED.fullmatch, names):
        with suppress(OSError):
            written_at = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            if time.time() - written_at > _ABANDONED_S:
                os.unlink(name, dir_fd=folder)


def _read(folder: int, name: str) -> Parked | None:
    """An entry, or None where it vanished meanwhile or is not one of this program's."""
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        with open(file, "rb") as stream:
            entry = msgspec.json.decode(stream.read(1 << 20), type=Parked)
    except (OSError, msgspec.MsgspecError):
        return None
    return entry if entry.schema == PARKED_SCHEMA else None

"""The journal of parked processes: what we moved, or were moving when we died.

One file for each process in the private state folder, on the disk before the driver is asked and
removed when the process runs again. The real state of a process is known to the driver alone; the
journal says whom to ask about.

An entry that cannot be read, or that cannot be true, is not used: it is renamed to
``set-aside-…`` and reported, and the others count as before.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import msgspec

from vram import untrusted
from vram.errors import AuditUnavailable, TimedOut
from vram.host.ports import Host
from vram.model.parking import PARKED_SCHEMA, Parked, SetAside
from vram.model.process import ParkedProcess
from vram.reclaim import audit, state
from vram.untrusted import Rejected

_ENTRY = re.compile(r"parked-.+-\d+-\d+\.json", re.ASCII)
_UNFINISHED = re.compile(_ENTRY.pattern + r"\.\d+\.new", re.ASCII)
# A write takes moments. Whether its vram lives cannot be asked: a home folder may be shared.
_ABANDONED_S = 3600.0

_MAX_ENTRY = 1 << 20
_MAX_ITEMS = 4096
_MAX_SHARES = 256
_MAX_BYTES = 1 << 50
_MAX_UUID_LENGTH = 128
_MAX_PID = 1 << 22
_MAX_KEPT_NAME_LENGTH = 200
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


class _Version(msgspec.Struct):
    schema: int = 0


class Journal:
    """The entries of this boot of this machine; a home folder may be shared by several.

    ``set_aside`` are the bad ones that this object has found.
    """

    def __init__(self, host: Host) -> None:
        self.boot_id = host.limits.boot_id()
        facts = host.facts()
        self.host_name = facts.name
        self.pid_namespace = facts.pid_namespace
        self.set_aside: list[SetAside] = []
        self._host = host

    def try_claim(self, pid: int) -> ProcessClaim | None:
        """Take the claim on *pid*; None where another vram is moving that process right now."""
        return try_claim(self.host_name, pid)

    def claim(self, pid: int) -> ProcessClaim:
        """The same, waiting for it a little; raises TimedOut and says who has it."""
        return claim(self._host, self.host_name, pid)

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
                f"cannot write the journal of parked processes: {error.strerror}",
                hint="vram parks only what it can find again after a crash",
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(fresh, dir_fd=folder)
            os.close(folder)

    def remove(self, entry: Parked) -> None:
        folder = state.open_folder()
        try:
            with suppress(OSError):  # gone, or not to be removed: the driver is asked again next time
                os.unlink(_name(entry), dir_fd=folder)
        finally:
            os.close(folder)

    def entries(self) -> tuple[Parked, ...]:
        """Every process that we moved in this boot and that still lives, oldest first."""
        return tuple(entry for entry in self._of_this_host() if self._is_ours(entry) and self._lives(entry))

    def other_namespaces(self) -> tuple[Parked, ...]:
        """Processes that a vram of another PID namespace moved in this boot: those pids may name others here,
        or none, so they are neither judged nor touched."""
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
            _remove_unfinished(folder, names)
            read = [self._read(folder, name) for name in names if _ENTRY.fullmatch(name)]
        finally:
            os.close(folder)
        return _sorted(entry for entry in read if entry is not None and entry.host == self.host_name)

    def _read(self, folder: int, name: str) -> Parked | None:
        """An entry; None where it vanished meanwhile, or was set aside now."""
        try:
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            return _entry(folder, name, about)
        except OSError:
            return None
        except Rejected as error:
            self._set_aside(folder, name, about, str(error))
            return None

    def _set_aside(self, folder: int, name: str, about: os.stat_result, reason: str) -> None:
        kept_as = _rename_aside(folder, name, about)
        bad = SetAside(_text(name), reason, None if kept_as is None else _text(kept_as))
        self.set_aside.append(bad)
        audit.log_refusal(
            {"action": "read journal", "entry": bad.name, "message": reason, "kept_as": bad.kept_as}
        )

    def _is_ours(self, entry: Parked) -> bool:
        """Whether its pid means the same process to us; entries of older vrams do not say."""
        return entry.pid_namespace in (None, self.pid_namespace)

    def _lives(self, entry: Parked) -> bool:
        """Whether there is anything to bring back; the entry of a process that has ended is removed."""
        seen = self._host.proc.facts(entry.target.process.pid)
        same = seen is not None and seen[0].started_at == entry.target.process.started_at
        if seen is not None and same and entry.boot_id == self.boot_id and not seen[1].is_dead:
            return True
        self.remove(entry)
        return False


def parked_now(host: Host) -> tuple[ParkedProcess, ...]:
    """Who is parked by this user, for display: nothing is created, removed or repaired by asking."""
    path = state.folder_path()
    try:
        names = [name for name in os.listdir(path) if _ENTRY.fullmatch(name)]
        if not names:
            return ()
        folder = state.open_folder()
    except (OSError, AuditUnavailable):
        return ()
    read = []
    try:
        for name in names:
            with suppress(OSError, Rejected):
                read.append(_entry(folder, name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
    finally:
        os.close(folder)
    me, boot_id = host.facts(), host.limits.boot_id()
    found = [
        entry
        for entry in read
        if (entry.host, entry.boot_id) == (me.name, boot_id)
        and entry.pid_namespace in (None, me.pid_namespace)
        and host.proc.started_at(entry.target.process.pid) == entry.target.process.started_at
    ]
    return tuple(_describe_parked(entry) for entry in _sorted(found))


def _text(name: str) -> str:
    r"""A file's name for people; what is not UTF-8 becomes a visible \xNN."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _sorted(entries: Iterable[Parked]) -> list[Parked]:
    return sorted(entries, key=lambda entry: (entry.since, entry.target.process.pid))


def _describe_parked(entry: Parked) -> ParkedProcess:
    return ParkedProcess(
        pid=entry.target.process.pid,
        user=entry.target.user,
        command=entry.target.command,
        nbytes=entry.nbytes,
        gpus=tuple(share.gpu for share in entry.shares),
        since=entry.since,
        lent_to=entry.by_pid if entry.purpose == "borrow" else None,
        asleep=entry.purpose == "sleep",
        started_at=entry.target.process.started_at,
    )


def _name(entry: Parked) -> str:
    process = entry.target.process
    return f"parked-{file_name_part(entry.boot_id)}-{process.pid}-{process.started_at}.json"


def _remove_unfinished(folder: int, names: Iterable[str]) -> None:
    """Remove files that vrams left which died while they wrote."""
    for name in filter(_UNFINISHED.fullmatch, names):
        with suppress(OSError):
            written_at = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            if time.time() - written_at > _ABANDONED_S:
                os.unlink(name, dir_fd=folder)


def _entry(folder: int, name: str, about: os.stat_result) -> Parked:
    """Read the entry *name*. Raises Rejected where it must not be used, OSError where it is gone."""
    if stat.S_ISLNK(about.st_mode):
        raise Rejected("not-a-file", "it is a link")
    if about.st_nlink > 1 and stat.S_ISREG(about.st_mode):
        raise Rejected("not-ours", "it has a second hard link")
    try:
        data = untrusted.read_file(name, nbytes=_MAX_ENTRY, dir_fd=folder, owner=os.geteuid())
    except Rejected:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise
    if not data:
        raise Rejected("cut-short", "it is empty")
    version = untrusted.decode(data, _Version, most_items=_MAX_ITEMS).schema
    if version != PARKED_SCHEMA:
        raise Rejected("wrong-shape", f"it has version {version}; this vram reads only {PARKED_SCHEMA}")
    entry = untrusted.decode(data, Parked, most_items=_MAX_ITEMS)
    wrong = _wrong_in(entry, name)
    if wrong:
        raise Rejected("wrong-shape", wrong)
    return entry


def _wrong_in(entry: Parked, name: str) -> str | None:
    """What cannot be true of *entry*."""
    process = entry.target.process
    if not 0 < process.pid < _MAX_PID:
        return f"{process.pid} is not a pid"
    if name != _name(entry):
        return f"its name does not match its contents: it should be {_name(entry)}"
    if len(entry.shares) > _MAX_SHARES:
        return f"it names {len(entry.shares)} GPUs"
    for share in entry.shares:
        if not (0 <= share.gpu < _MAX_ITEMS and 0 <= share.nbytes < _MAX_BYTES):
            return f"it says {share.nbytes} bytes on GPU {share.gpu}"
        if len(share.uuid) > _MAX_UUID_LENGTH or not share.uuid.isprintable():
            return "it contains an invalid GPU UUID"
    try:
        time.strptime(entry.since, TIME_FORMAT)
    except ValueError:
        return "its time is invalid"
    return None


def _rename_aside(folder: int, name: str, about: os.stat_result) -> str | None:
    """Rename the file *name*, which *about* describes; None where that is not possible."""
    kept_as = f"set-aside-{time.time_ns()}-{os.fsdecode(os.fsencode(name)[:_MAX_KEPT_NAME_LENGTH])}"
    try:
        os.rename(name, kept_as, src_dir_fd=folder, dst_dir_fd=folder)
        moved = os.stat(kept_as, dir_fd=folder, follow_symlinks=False)
        if (moved.st_dev, moved.st_ino) != (about.st_dev, about.st_ino):
            # Another vram has just replaced it by a good one.
            os.rename(kept_as, name, src_dir_fd=folder, dst_dir_fd=folder)
            return None
    except OSError:
        return None
    return kept_as


# ---- a lock for each process that is moved: one vram, with its checkpoint worker, has it at a time ----
#
# A claim is a lock on the byte number PID of one file in the private state folder. It belongs to the
# open file and travels with its descriptor, so it lasts while the vram or the worker that moves the
# process lives, and not a moment longer. A process that is stopped, or stuck in the driver, still has it:
# others wait up to a deadline, and then the error says who has it.


# Longer than a vram takes to clean up after another; a move itself is not waited for.
WAIT_S = 2.0
_PAUSE_S = 0.01
WORKER = "vram-checkpoint-worker"
_SEARCH_S = 1.0
_NOT_RUNNING = {
    "T": ", which is stopped",
    "t": ", which a debugger has stopped",
    "D": ", stuck in the kernel",
}


class ProcessClaim:
    """The lock on moving one process."""

    def __init__(self, file: int) -> None:
        self._file = file

    def __enter__(self) -> ProcessClaim:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def fileno(self) -> int:
        return self._file


def try_claim(host_name: str, pid: int) -> ProcessClaim | None:
    """Take the claim on *pid*; None where another vram has it.

    Raises AuditUnavailable where the file or its disk takes no locks.
    """
    file = state.open_file(_file_name(host_name), os.O_RDWR | os.O_CREAT)
    lock = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, pid, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    except (BlockingIOError, PermissionError):  # POSIX lets a system choose between the two
        os.close(file)
        return None
    except OSError as error:
        os.close(file)
        raise AuditUnavailable(
            f"cannot lock {_file_name(host_name)}: {error.strerror}",
            hint="set XDG_STATE_HOME to a folder on a disk that supports file locks",
        ) from error
    return ProcessClaim(file)


def claim(host: Host, host_name: str, pid: int, wait_s: float = WAIT_S) -> ProcessClaim:
    """Take the claim on *pid*, waiting for it up to *wait_s*; raises TimedOut and says who has it."""
    deadline = host.clock.monotonic() + wait_s
    while (taken := try_claim(host_name, pid)) is None:
        if host.clock.monotonic() >= deadline:
            raise _timed_out(host, host_name, pid)
        host.clock.sleep(_PAUSE_S)
    return taken


def _timed_out(host: Host, host_name: str, pid: int) -> TimedOut:
    names = [_described(host, holder) for holder in _holders(host, host_name, pid)]
    who = f"by {' and '.join(names)}" if names else "by a process that is not visible from here"
    return TimedOut(
        f"pid {pid} is being moved {who}; it was not touched",
        hint="wait until that is done; `vram park` shows its state. If the mover has exited, the next"
        " vram command resumes it",
    )


def _described(host: Host, pid: int) -> str:
    seen = host.proc.facts(pid)
    if seen is None:
        return f"pid {pid}"
    facts = seen[1]
    # A worker's own command line is a line of Python that means nothing to people.
    command = facts.argv[-1] if facts.argv[-1:] == (WORKER,) else " ".join(facts.argv) or facts.command
    return f"pid {pid} ({command}){_NOT_RUNNING.get(facts.state, '')}"


def _holders(host: Host, host_name: str, pid: int) -> list[int]:
    """Who has the locked file open, in the order of their start: a vram, and then its worker.

    The kernel names no process for such a lock, only the open files that carry it.
    """
    path = os.fsencode(os.path.realpath(os.path.join(state.folder_path(), _file_name(host_name))))
    deadline = time.monotonic() + _SEARCH_S
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if time.monotonic() >= deadline:
            break
        if any(_covers(info, pid) for info in _infos(name, path)):
            found.append(int(name))
    return sorted(found, key=lambda each: host.proc.started_at(each) or 0)


def _infos(process: str, path: bytes) -> Iterator[str]:
    """The fdinfo of each descriptor of *process* that is *path*."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                if os.readlink(os.fsencode(f"/proc/{process}/fd/{number}")) == path:
                    with open(f"/proc/{process}/fdinfo/{number}", encoding="ascii") as file:
                        yield file.read()


def _covers(info: str, pid: int) -> bool:
    ranges = re.findall(r"^lock:.* (\d+) (\d+|EOF)$", info, re.MULTILINE)
    return any(int(first) <= pid and (last == "EOF" or pid <= int(last)) for first, last in ranges)


def _file_name(host_name: str) -> str:
    return f"parking-{file_name_part(host_name)}.lock"


def file_name_part(word: str) -> str:
    """*word* as a part of a file's name."""
    return re.sub(r"[^0-9A-Za-z.-]", "-", word)

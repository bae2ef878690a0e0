"""The history's file: where it lies, who may open it, and what happens to one that is not ours or damaged.

It is written only in a folder that only its user can change, by one process at a time. What lies
there and is no history is moved aside, never deleted. It is read from folders that others cannot write to:
who can write beside a database decides what its reader sees.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from contextlib import closing

from vram import folders
from vram.errors import BadInput, HistoryUnavailable, NothingFound, NotPermitted
from vram.history import NAME, schema
from vram.history.sqlite_codes import CONSTRAINT, CORRUPT, ERROR, FORMAT, MISMATCH, NOTADB, code_of

MAX_ASIDE = 8
PAGE_NBYTES = 1024

_BESIDE = ("-wal", "-shm", "-journal")
_MAGIC = b"SQLite format 3\0"
_HEADER_NBYTES, _VERSION_AT, _APPLICATION_AT = 100, 60, 68
# Our own statements are sound: those that fail have met tables or rows that were never written so.
_BY_DAMAGE = (NOTADB, CORRUPT, FORMAT, ERROR, CONSTRAINT, MISMATCH)
_BUSY_S = 0.2
_API = "ask the service instead: curl 'http://127.0.0.1:9838/api/v1/history/holders?gpu=0'"


class DamagedRow(sqlite3.DatabaseError):
    """SQLite can read the file, and what it says was never written."""


DAMAGE = (sqlite3.Error, UnicodeDecodeError)
"""What SQLite raises; where a damaged file makes its messages unreadable, Python cannot decode them."""


def is_damage(error: Exception) -> bool:
    """Whether *error* says that the file is damaged, or is no database."""
    if isinstance(error, (UnicodeDecodeError, DamagedRow)):
        return True
    return code_of(error) in _BY_DAMAGE


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


# ---- for the one process that writes it ----


class _Foreign(Exception):
    """The database has other tables than ours, or triggers."""


class WritableFile:
    """The file, locked for us and open. ``notice`` is what must be said about what lay there before."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.notice = ""
        self._folder = -1
        self._lock = -1
        try:
            self._folder = folders.open_private(os.path.dirname(self.path), make=True)
            self._lock = self._lock_file()
            self._require_own_files()
            self.connection = self._open()
        except OSError as error:
            self._release()
            raise HistoryUnavailable(
                f"the history cannot be kept in {self.path}: {error.strerror}",
                hint="choose a folder of your own (mode 0700) in [history] path",
            ) from error
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        try:
            self.connection.close()
        finally:
            self._release()

    @property
    def nbytes(self) -> int:
        """What it takes on the disk, with what lies beside it."""
        return sum(entry.st_size for suffix in ("", *_BESIDE) if (entry := self._entry(suffix)))

    @property
    def log_nbytes(self) -> int:
        """What its write-ahead log takes."""
        entry = self._entry("-wal")
        return entry.st_size if entry else 0

    def move_aside(self, reason: str) -> None:
        """Give way to a new file; *reason* becomes a part of the old one's name."""
        name = os.path.basename(self.path)
        aside = [
            each
            for each in os.listdir(self._folder)
            if each.startswith((f"{name}.damaged-", f"{name}.foreign-"))
        ]
        if len(aside) >= MAX_ASIDE:
            raise HistoryUnavailable(
                f"{self.path} is {reason}, and {len(aside)} files were moved aside there already",
                hint="look at them, and move or delete them",
            )
        to = f"{name}.{reason}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.urandom(2).hex()}"
        for suffix in ("", *_BESIDE):
            if self._entry(suffix):
                os.rename(name + suffix, to + suffix, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self.notice = f"{self.path} is {reason}: it was moved to {to} beside it, and a new history begins"

    def _lock_file(self) -> int:
        name = os.path.basename(self.path) + "-lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(name, flags, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            hint = "one service writes a history; give the other another [history] path"
            raise HistoryUnavailable(f"another process writes {self.path}", hint=hint) from error
        return lock

    def _require_own_files(self) -> None:
        for suffix in ("", *_BESIDE):
            entry = self._entry(suffix)
            if entry is None:
                continue
            if not stat.S_ISREG(entry.st_mode) or entry.st_nlink > 1:
                raise OSError(errno.EPERM, f"{self.path}{suffix} is a link or not a plain file")
            if entry.st_uid != os.geteuid():
                owner = folders.owner_name(entry.st_uid)
                raise OSError(errno.EPERM, f"{self.path}{suffix} belongs to {owner}")

    def _open(self) -> sqlite3.Connection:
        if reason := self._reject_reason():
            self.move_aside(reason)
        self._make()
        try:
            return self._connect()
        except _Foreign:
            self.move_aside("foreign")
        except DAMAGE as error:
            if not is_damage(error):
                raise _unavailable(self.path, error) from error
            self.move_aside("damaged")
        self._make()
        try:
            return self._connect()
        except DAMAGE as error:
            raise _unavailable(self.path, error) from error

    def _make(self) -> None:
        """An empty file that only we can read; SQLite would make one by the umask."""
        name = os.path.basename(self.path)
        file = os.open(
            name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._folder
        )
        try:
            os.fchmod(file, 0o600)
        finally:
            os.close(file)

    def _reject_reason(self) -> str | None:
        """Why the file is not to be opened by SQLite. Raises BadInput for one of a newer version."""
        if self._entry("-journal"):
            return None  # a creation was cut short: SQLite rolls it back
        try:
            file = os.open(
                os.path.basename(self.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
            )
        except FileNotFoundError:
            return None
        try:
            header = os.read(file, _HEADER_NBYTES)
        finally:
            os.close(file)
        if not header:
            return None
        if not header.startswith(_MAGIC) or len(header) < _HEADER_NBYTES:
            return "foreign"
        mark = int.from_bytes(header[_APPLICATION_AT : _APPLICATION_AT + 4], "big")
        if mark == schema.APPLICATION_ID:
            require_known_version(int.from_bytes(header[_VERSION_AT : _VERSION_AT + 4], "big"), self.path)
        elif mark:
            return "foreign"
        # Without a mark it may be our own, killed while it was made: _connect looks whether it has tables.
        return None

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_S)
        connection.text_factory = _text
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            if not schema.is_ours(connection):
                raise _Foreign
            # Most rows of a minute belong to different places: small pages make for few bytes written.
            connection.execute(f"PRAGMA page_size = {PAGE_NBYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            # A new file gets its tables before it gets a log: a file of no bytes would lose the log.
            schema.upgrade(connection)
            if not schema.is_intact(connection):
                raise _Foreign
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA temp_store = MEMORY")
        except BaseException:
            connection.close()
            raise
        return connection

    def _entry(self, suffix: str) -> os.stat_result | None:
        try:
            return os.stat(os.path.basename(self.path) + suffix, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _release(self) -> None:
        for file in (self._lock, self._folder):
            if file >= 0:
                os.close(file)
        self._lock = self._folder = -1


def require_known_version(found: int, path: str) -> None:
    """Raise BadInput where the file was written by a newer vram; it is left as it is."""
    if found > schema.VERSION:
        raise BadInput(
            f"{path} was written by a newer vram (version {found}; this one knows {schema.VERSION})",
            hint="install that version, or give the service another [history] path",
        )


def _unavailable(path: str, error: Exception) -> HistoryUnavailable:
    return HistoryUnavailable(
        f"the history cannot be kept in {path}: {error}", hint="is there room on the disk?"
    )


# ---- for its readers ----


def open_for_reading(path: str) -> sqlite3.Connection:
    """A connection that cannot write; it works while the service writes, and where nothing can be written."""
    _require_trusted(path)
    connection = _read_only(path)
    try:
        connection.text_factory = _text
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA cell_size_check = ON")
        if not schema.is_ours(connection):
            raise _of_another(path)
        found = schema.version(connection)
        require_known_version(found, path)
        if not found:
            raise NothingFound(f"nothing was recorded in {path} yet", hint="look again in a minute")
        if found < schema.VERSION:
            hint = "start the service once: it brings the file up to date"
            raise BadInput(f"{path} was written by an older vram", hint=hint)
        if not schema.is_intact(connection):
            raise _of_another(path)
    except DAMAGE as error:
        connection.close()
        raise cannot_read(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _of_another(path: str) -> BadInput:
    return BadInput(f"{path} is a database of another program", hint="the service's file is history.sqlite")


def cannot_read(path: str, error: Exception) -> BadInput | HistoryUnavailable:
    """What to tell a reader."""
    if is_damage(error):
        hint = "the service moves it aside and begins a new one when it meets the damage"
        return BadInput(f"{path} is damaged or no history: {error}", hint=hint)
    return HistoryUnavailable(f"{path} cannot be read now: {error}", hint="try again")


def _require_trusted(path: str) -> None:
    try:
        about = os.lstat(path)
        folder = os.open(os.path.dirname(os.path.abspath(path)), folders.FOLDER)
    except FileNotFoundError as error:
        raise NothingFound(
            f"there is no history in {path}", hint="`vram serve` records one; --file names another"
        ) from error
    except PermissionError as error:
        raise NotPermitted(f"only the service's own user may read {path}", hint=_API) from error
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", hint="--file names the history") from error
    try:
        if not stat.S_ISREG(about.st_mode):
            raise NotPermitted(f"{path} is a link or not a plain file", hint="name the file itself")
        if not folders.is_trusted_owner(about.st_uid):
            owner = folders.owner_name(about.st_uid)
            raise NotPermitted(
                f"{path} belongs to {owner}", hint="copy it into a folder of your own, as your own file"
            )
        if about.st_mode & 0o022 or not folders.is_ours_alone(folder):
            raise NotPermitted(
                f"others can change {path} or what lies beside it", hint="copy it into a folder of your own"
            )
    finally:
        os.close(folder)
    if not os.access(path, os.R_OK):
        raise NotPermitted(f"only the service's own user may read {path}", hint=_API)


def _read_only(path: str) -> sqlite3.Connection:
    quoted = os.path.abspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    try:
        connection = sqlite3.connect(f"file:{quoted}?mode=ro", uri=True, isolation_level=None, timeout=2.0)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            return connection
        except DAMAGE:
            connection.close()
            raise
    except DAMAGE as error:
        if is_damage(error) or os.access(os.path.dirname(os.path.abspath(path)), os.W_OK):
            raise cannot_read(path, error) from error
    # A log needs an index beside it, which cannot be made here.
    return _copy(path)


def _copy(path: str) -> sqlite3.Connection:
    """A copy in memory, where the file lies on a file system that cannot be written to."""
    import tempfile
    from shutil import copyfile

    try:
        with tempfile.TemporaryDirectory() as folder:
            for suffix in ("", "-wal"):
                if os.path.exists(path + suffix):
                    copyfile(path + suffix, os.path.join(folder, NAME + suffix))
            copy = sqlite3.connect(":memory:", isolation_level=None)
            with closing(sqlite3.connect(os.path.join(folder, NAME))) as source:
                source.backup(copy)
            return copy
    except DAMAGE as error:
        raise cannot_read(path, error) from error
    except OSError as error:
        raise HistoryUnavailable(
            f"{path} cannot be copied to be read: {error.strerror}", hint="set TMPDIR"
        ) from error

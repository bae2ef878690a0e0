"""Files that vram writes for people: whole or not at all, and never through what another user put there.
Files that others give it are opened by the same rules.

A file is made beside its place, under a random name, and moved there in one step. Links are
followed only in folders that only this user and root can change. A device or a pipe cannot be replaced,
it is written to; a pipe that another user may have put there is refused.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import BinaryIO

from vram import folders
from vram.errors import UsageError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SECRET, _USUAL = 0o600, 0o666  # of the latter the kernel takes what the umask says
_OWN_DESCRIPTORS = "/proc/self/fd"
# Of link(): the file system has none, or does not allow them.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def write_file(
    path: str, contents: bytes, *, secret: bool = False, mode: int | None = None, durable: bool = True
) -> None:
    """Write *contents* to *path*, in place of a file that was there. Only its owner can read a *secret* one.

    *mode* is the file's whatever the umask says. Not *durable*: vram does not wait for the disk, and after a
    power cut the file may be empty. Raises UsageError where that cannot be, or where another user decides
    what *path* means.
    """
    try:
        _write(path, contents, secret=secret, mode=mode, durable=durable)
    except OSError as error:
        raise _cannot_write(path, error) from error


def write_files(folder: str, contents: Mapping[str, bytes]) -> None:
    """Write files by their names into *folder*, which is made where it is missing."""
    try:
        make_folder(folder)
    except OSError as error:
        hint = "choose a folder that you can write to"
        raise UsageError(f"cannot create {folder}: {error.strerror}", hint=hint) from error
    for name, data in contents.items():
        write_file(os.path.join(folder, name), data)


def write_new(path: str, contents: bytes) -> None:
    """Write *contents* to a file that only this user can read, and that was not there before.

    Raises FileExistsError where something was, be it a link, and OSError where it cannot be written.
    """
    with _located(path, follow_last=False) as (folder, name):
        if _lstat(folder, name):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        with _Fresh(folder, contents, _SECRET) as fresh:
            fresh.become_new(name)


@contextmanager
def new_file(path: str, *, force: bool = False) -> Iterator[BinaryIO]:
    """A stream for contents that are too large for memory: they become *path* when the block ends well.

    Raises UsageError where something is there already, unless *force*, and where *path* cannot be written.
    """
    try:
        with _located(path) as (folder, name), _stream(folder, name, force=force) as stream:
            yield stream
    except FileExistsError as error:
        raise UsageError(f"{path} exists", hint="choose another name, or add --force") from error
    except OSError as error:
        raise _cannot_write(path, error) from error


@contextmanager
def _stream(folder: int, name: str, *, force: bool) -> Iterator[BinaryIO]:
    entry = _lstat(folder, name)
    own = _own_descriptor(folder, name)
    if own is not None or (entry and not stat.S_ISREG(entry.st_mode)):
        with open(_open_special(folder, name) if own is None else os.dup(own), "wb") as stream:
            yield stream
        return
    if entry and not force:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    if entry:
        _require_replaceable(folder, entry)
    with _Fresh(folder, b"", _USUAL) as fresh:
        with fresh.stream() as stream:
            yield stream
        fresh.replace(name) if force else fresh.become_new(name)


def open_plain(path: str, flags: int = 0) -> int:
    """A descriptor for reading the plain file *path*, whose name may be another user's choice.

    Raises OSError; IsADirectoryError for a folder, and EINVAL for a device or a pipe. Those are not opened:
    to open a watchdog or a tape already does something, and a pipe keeps waiting. *flags* are more of open().
    """
    entry = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        mode = os.fstat(entry).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a plain file", path)
        # The very file that was judged, whatever the name means by now.
        return os.open(f"{_OWN_DESCRIPTORS}/{entry}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(entry)


def open_given(path: str) -> int:
    """`open_plain` for a file that another user may have put there: what it leads to is not their choice.

    Links are followed as for writing. In a folder that others can change, the file must be ours, root's or
    the folder's owner's, and have no other name: the user who made a second name may not be able to read it.
    """
    with _located(path) as (folder, name):
        file = open_plain(f"{_OWN_DESCRIPTORS}/{folder}/{name}", os.O_NOFOLLOW)
        try:
            _require_put_here(folder, os.fstat(file))
        except BaseException:
            os.close(file)
            raise
        return file


def _cannot_write(path: str, error: OSError) -> UsageError:
    hint = "choose a file in a folder that only you can write to"
    return UsageError(f"cannot write {path}: {error.strerror}", hint=hint)


def make_folder(path: str, mode: int = 0o777) -> None:
    """Make *path* and the folders on the way that are missing. Raises OSError where that cannot be."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    folder, _ = _locate(os.path.join(path, "."), make=mode)
    os.close(folder)


def _write(path: str, contents: bytes, *, secret: bool, mode: int | None, durable: bool) -> None:
    with _located(path) as (folder, name):
        if (own := _own_descriptor(folder, name)) is not None:
            _fill(os.dup(own), contents)
            return
        entry = _lstat(folder, name)
        if entry and not stat.S_ISREG(entry.st_mode):
            _fill(_open_special(folder, name), contents)
            return
        if entry:
            _require_replaceable(folder, entry)
        private = secret or entry is not None or mode is not None
        with _Fresh(folder, contents, _SECRET if private else _USUAL, durable=durable) as fresh:
            if mode is not None:
                fresh.set_mode(mode)
            elif entry and not secret:
                fresh.set_mode(stat.S_IMODE(entry.st_mode) & 0o777)
            fresh.replace(name)


class _Fresh:
    """A file beside its place. It is gone at the end, unless it was moved there."""

    def __init__(self, folder: int, contents: bytes, mode: int, *, durable: bool = True) -> None:
        self._folder, self._contents, self._durable = folder, contents, durable
        self._name = f".vram-{os.urandom(12).hex()}.new"
        self._file = os.open(self._name, _NEW, mode, dir_fd=folder)

    def __enter__(self) -> _Fresh:
        try:
            _fill(os.dup(self._file), self._contents)
            if self._durable:
                os.fsync(self._file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)

    @contextmanager
    def stream(self) -> Iterator[BinaryIO]:
        """Write it piece by piece; on the disk when the block ends."""
        with open(os.dup(self._file), "wb") as stream:
            yield stream
        os.fsync(self._file)

    def set_mode(self, mode: int) -> None:
        os.fchmod(self._file, mode)

    def replace(self, name: str) -> None:
        os.replace(self._name, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def become_new(self, name: str) -> None:
        try:
            # By its descriptor: under its name there may be another user's by now.
            os.link(f"{_OWN_DESCRIPTORS}/{self._file}", name, dst_dir_fd=self._folder, follow_symlinks=True)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.replace(name)


class _Walk:
    """On the way to a path: the folder that was reached, as a descriptor, and the names that are left."""

    def __init__(self, path: str) -> None:
        self.names = folders.parts(path)
        if not self.names or path.endswith(("/", "/.")):
            self.names.append(".")  # the folder itself
        self._links = 0
        self._shown = "/" if path.startswith("/") else ""
        self.folder = os.open(self._shown or ".", folders.FOLDER)

    def is_at_link(self) -> bool:
        """Whether the next name is a link that leads on to another name."""
        entry = _lstat(self.folder, self.names[0])
        leads_on = entry is not None and stat.S_ISLNK(entry.st_mode)
        return leads_on and _own_descriptor(self.folder, self.names[0]) is None

    def step(self) -> None:
        """Go through the next name: into a folder, or to where a link leads."""
        name = self.names.pop(0)
        entry = os.open(name, folders.ENTRY, dir_fd=self.folder)
        try:
            about = os.fstat(entry)
            if stat.S_ISLNK(about.st_mode):
                self._require_followable(name, about)
                self._follow(os.readlink("", dir_fd=entry))
            else:
                self._enter(os.open(".", folders.FOLDER, dir_fd=entry), os.path.join(self._shown, name))
        finally:
            os.close(entry)

    def _follow(self, target: str) -> None:
        self.names[:0] = folders.parts(target) or ["."]
        if target.startswith("/"):
            self._enter(os.open("/", folders.FOLDER), "/")

    def _enter(self, folder: int, shown: str) -> None:
        os.close(self.folder)
        self.folder, self._shown = folder, shown

    def _require_followable(self, name: str, about: os.stat_result) -> None:
        self._links += 1
        if self._links > folders.MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if folders.is_ours_alone(self.folder):
            return
        link = os.path.join(self._shown, name)
        owner = folders.owner_name(about.st_uid)
        if not self.names:
            raise _refusal(f"{link} is a link of {owner} in a folder that others can write to")
        if not folders.is_trusted_owner(about.st_uid):
            raise _refusal(f"its path leads through a link of {owner}, {link}")


def _locate(path: str, *, follow_last: bool = True, make: int | None = None) -> tuple[int, str]:
    """The folder that *path* leads to, as a descriptor, and the name there.

    With *make*, folders that are missing on the way get that mode.
    """
    walk = _Walk(path)
    try:
        while len(walk.names) > 1 or (follow_last and walk.is_at_link()):
            if make is not None:
                with suppress(FileExistsError):
                    os.mkdir(walk.names[0], make, dir_fd=walk.folder)
            walk.step()
    except BaseException:
        os.close(walk.folder)
        raise
    return walk.folder, walk.names[0]


@contextmanager
def _located(path: str, *, follow_last: bool = True) -> Iterator[tuple[int, str]]:
    """As :func:`_locate`; the folder's descriptor is closed at the end."""
    folder, name = _locate(path, follow_last=follow_last)
    try:
        yield folder, name
    finally:
        os.close(folder)


def _own_descriptor(folder: int, name: str) -> int | None:
    """The descriptor of ours that *name* stands for, as /dev/stdout and a shell's >(...) do.

    It was opened for vram by the process that started it: nothing is left to be decided by a path.
    """
    try:
        is_ours = os.path.samestat(os.fstat(folder), os.stat(_OWN_DESCRIPTORS))
    except OSError:
        return None
    return int(name) if is_ours and name.isdecimal() else None


def _open_special(folder: int, name: str) -> int:
    """Open what cannot be replaced, for writing: the very thing that was judged, by its descriptor."""
    entry = os.open(name, folders.ENTRY, dir_fd=folder)
    try:
        about = os.fstat(entry)
        foreign = not folders.is_trusted_owner(about.st_uid) and not folders.is_ours_alone(folder)
        if stat.S_ISFIFO(about.st_mode) and foreign:
            raise _refusal(f"it is a pipe of {folders.owner_name(about.st_uid)}")
        if stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode):
            raise _refusal("another process is changing it right now")
        return os.open(f"{_OWN_DESCRIPTORS}/{entry}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(entry)


def _require_replaceable(folder: int, entry: os.stat_result) -> None:
    """Another user's file is replaced only where its folder is that user's alone, as at home."""
    place = os.fstat(folder)
    is_at_home = entry.st_uid == place.st_uid and not folders.others_may_write(folder, place)
    if entry.st_uid != os.geteuid() and not is_at_home and not folders.is_ours_alone(folder):
        owner = folders.owner_name(entry.st_uid)
        raise _refusal(f"it is a file of {owner} in a folder that others can write to")


def _require_put_here(folder: int, file: os.stat_result) -> None:
    if folders.is_ours_alone(folder):
        return
    if not folders.is_trusted_owner(file.st_uid) and file.st_uid != os.fstat(folder).st_uid:
        owner = folders.owner_name(file.st_uid)
        raise _refusal(f"it is a file of {owner} in a folder that others can write to")
    if file.st_nlink > 1:
        raise _refusal("it has another name elsewhere, and its folder is one that others can write to")


def _lstat(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _fill(file: int, contents: bytes) -> None:
    with open(file, "wb") as stream:
        stream.write(contents)


def _refusal(reason: str) -> PermissionError:
    return PermissionError(errno.EPERM, reason)

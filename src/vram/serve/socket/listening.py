"""A Unix socket in a folder that nobody else can change: made beside its place, moved there in one step."""

from __future__ import annotations

import errno
import os
import socket
import stat
from contextlib import suppress

from vram import folders
from vram.errors import AlreadyRunning, CannotListen

BACKLOG = 128
_MODE_ANYBODY = 0o666


class ListeningSocket:
    """Listens at *path* until it is closed. The folder decides who may connect, the kernel who may act.

    Raises CannotListen where somebody else could have put something there, and AlreadyRunning where a service
    answers at *path*. A socket that a dead service left is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._name = os.path.basename(path)
        try:
            self._folder = _open_folder(os.path.dirname(path) or "/")
        except OSError as error:
            raise _refusal(path, error.strerror or str(error)) from error
        try:
            self._require_free()
            self.socket = self._bound()
        except OSError as error:
            os.close(self._folder)
            raise _refusal(path, error.strerror or str(error)) from error
        except BaseException:
            os.close(self._folder)
            raise

    def close(self) -> None:
        """Stop listening, and remove the socket if it is still ours."""
        self.socket.close()
        with suppress(OSError):
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
            if (about.st_dev, about.st_ino) == self._inode:
                os.unlink(self._name, dir_fd=self._folder)
        os.close(self._folder)

    def _at(self, name: str) -> str:
        # By the folder's descriptor: a path may be too long for a socket, or mean another folder meanwhile.
        return f"/proc/self/fd/{self._folder}/{name}"

    def _require_free(self) -> None:
        try:
            about = os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(about.st_mode):
            raise _refusal(self.path, "there is a link or another file already")
        if about.st_uid != os.geteuid():
            raise _refusal(self.path, f"there is a socket of {folders.owner_name(about.st_uid)} already")
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(1.0)
            try:
                trial.connect(self._at(self._name))
            except (ConnectionRefusedError, FileNotFoundError):
                return  # its service is dead
            except OSError:
                pass  # one that is too busy to answer lives
        raise AlreadyRunning(
            f"another service answers at {self.path}",
            hint="one service is enough; or choose another --socket",
        )

    def _bound(self) -> socket.socket:
        fresh = f".vram-{os.urandom(8).hex()}"
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            made.bind(self._at(fresh))
            os.chmod(fresh, _MODE_ANYBODY, dir_fd=self._folder)
            made.listen(BACKLOG)
            about = os.stat(fresh, dir_fd=self._folder, follow_symlinks=False)
            self._inode = (about.st_dev, about.st_ino)
            os.replace(fresh, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except BaseException:
            made.close()
            with suppress(OSError):
                os.unlink(fresh, dir_fd=self._folder)
            raise
        return made


def _open_folder(path: str) -> int:
    """The folder, made where it is missing: ours, and nobody else may write to it or replace it."""
    here, missing = folders.nearest(path)
    try:
        for name in list(missing):
            _require_ours(here, path, is_last=False)
            with suppress(FileExistsError):
                os.mkdir(name, 0o755 if os.geteuid() == 0 else 0o700, dir_fd=here)
            os.close(here)
            here, _ = folders.nearest(path)
        _require_ours(here, path, is_last=True)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=here)
    finally:
        os.close(here)


def _require_ours(folder: int, path: str, *, is_last: bool) -> None:
    about = os.fstat(folder)
    if not stat.S_ISDIR(about.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, f"{path} is not a folder")
    if is_last and (about.st_uid != os.geteuid() or folders.others_may_write(folder, about)):
        owner = folders.owner_name(about.st_uid)
        mode = stat.S_IMODE(about.st_mode)
        raise PermissionError(
            errno.EPERM, f"others can change {path}: it belongs to {owner}, mode {mode:04o}"
        )


def _refusal(path: str, reason: str) -> CannotListen:
    hint = (
        "choose a folder that only you can write to, with --socket; there is no other place to fall back to"
    )
    return CannotListen(f"cannot listen at {path}: {reason}", hint=hint)

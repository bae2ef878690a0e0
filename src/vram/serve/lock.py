"""One service for a state folder: whoever has its lock. The kernel releases it, however the service ends."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress

from vram import folders
from vram.errors import AlreadyRunning, ConfigError

LOCK = "serve.lock"


class StateFolder:
    """The private folder of the service, locked; ``descriptor`` leads to it whatever its path means later."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.descriptor = folders.open_private(path, make=True)
        except OSError as error:
            hint = "make it a folder that only you can access (mode 0700), or choose another with --state"
            raise ConfigError(f"cannot use the state folder {path}: {error.strerror}", hint=hint) from error
        try:
            self._lock = self._take()
        except BaseException:
            os.close(self.descriptor)
            raise

    def _take(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            lock = os.open(LOCK, flags, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            raise ConfigError(
                f"cannot write to the state folder {self.path}: {error.strerror}",
                hint="choose another with --state",
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(lock).st_mode):
                raise ConfigError(f"{self.path}/{LOCK} is not a plain file", hint="remove it")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            pid = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
            os.close(lock)
            who = f" (pid {pid})" if pid.isdecimal() else ""
            raise AlreadyRunning(
                f"another vram serve{who} uses the state folder {self.path}",
                hint="one service a machine is enough; `vram serve --state` gives another one its own folder",
            ) from error
        except BaseException:
            os.close(lock)
            raise
        with suppress(OSError):  # a full disk: the lock is held all the same
            os.ftruncate(lock, 0)
            os.pwrite(lock, b"%d\n" % os.getpid(), 0)
        return lock

    def close(self) -> None:
        os.close(self._lock)
        os.close(self.descriptor)

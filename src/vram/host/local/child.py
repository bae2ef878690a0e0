"""A process of our own for calls that may never return: started cheaply, ended without waiting.

A fork is cheapest. But a forked child keeps every device file its parent has open alive,
and copies only one of its threads: where there is a CUDA library or a second thread, a
fresh interpreter is started instead.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

_NULL = os.devnull
_PIPE_NBYTES = 1 << 20  # a full pipe would hold the child up while its parent looks elsewhere


class Child:
    """A started child: what it writes comes out of ``pipe``."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self._reaped = False
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # SIGCHLD is ignored here, so it was reaped by the kernel already
            self._pidfd, self._reaped = -1, True

    def end(self, grace_s: float) -> bool:
        """Kill it and wait for at most *grace_s*; False where it cannot die (state D)."""
        if not self.wait(0.0):
            from signal import SIGKILL, pidfd_send_signal

            pidfd_send_signal(self._pidfd, SIGKILL)
        return self.wait(grace_s)

    def end_group(self, grace_s: float) -> bool:
        """Kill it and all that it started; it must have been started apart."""
        if not self._reaped:
            from signal import SIGKILL

            with suppress(ProcessLookupError):  # its number is its own until it is reaped
                os.killpg(self.pid, SIGKILL)
        return self.end(grace_s)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within *timeout_s*."""
        if not self._reaped:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            if poll.poll(timeout_s * 1000):
                self._reap()
        return self._reaped

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self._reaped = True

    def hang_up(self) -> None:
        """Stop listening: what it still writes fails."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1


def may_fork() -> bool:
    """Whether a fork of this process is safe, and inherits no device file."""
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            return False
        with open("/proc/self/maps", "rb") as maps:
            return b"/libcuda.so" not in maps.read()
    except OSError:
        return False


def start(job: Callable[[int], None], command: Sequence[str], *, two_way: bool = False) -> Child:
    """Run ``job(pipe)`` in a fork, or where that is not safe *command*, which gets the pipe as
    descriptor 3. *two_way*: the child can read from it too."""
    return fork(job, two_way=two_way) if may_fork() else spawn(command, two_way=two_way)


def fork(job: Callable[[int], None], *, two_way: bool = False) -> Child:
    """Run ``job(pipe)`` in a fork, which has no other descriptor; ask :func:`may_fork` first."""
    ours, theirs = _pipe(two_way)
    pid = os.fork()
    if pid == 0:
        try:
            _close_all_but(theirs)
            job(theirs)
        finally:
            os._exit(0)
    os.close(theirs)
    return Child(pid, ours)


def spawn(
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    *,
    number: int = 3,
    apart: bool = False,
    two_way: bool = False,
) -> Child:
    """Start a program with nothing but a pipe as descriptor *number*; *apart*, in a group of its own."""
    ours, theirs = _pipe(two_way)
    actions = [(os.POSIX_SPAWN_OPEN, standard, _NULL, os.O_RDWR, 0) for standard in (0, 1, 2)]
    group: dict[str, Any] = {"setpgroup": 0} if apart else {}
    try:
        # It may be `theirs` itself; dup2 onto itself would leave close-on-exec set.
        copy = os.dup(theirs) if theirs == number else theirs
        pid = os.posix_spawn(
            command[0],
            list(command),
            os.environ if environment is None else environment,
            file_actions=[*actions, (os.POSIX_SPAWN_DUP2, copy, number)],
            **group,
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        for end in {theirs, copy}:
            os.close(end)
    return Child(pid, ours)


def _pipe(two_way: bool) -> tuple[int, int]:
    if two_way:
        import socket

        here, there = socket.socketpair()
        here.setblocking(False)
        return here.detach(), there.detach()
    import fcntl

    ours, theirs = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(ours, False)
    with suppress(OSError):  # the user's share of pipe memory is used up: the default does
        fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PIPE_NBYTES)
    return ours, theirs


def _close_all_but(pipe: int) -> None:
    """A child that hangs for good must not hold the terminal, a pager's pipe or a lock."""
    null = os.open(_NULL, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.closerange(3, pipe)
    os.closerange(pipe + 1, _highest_descriptor() + 1)


def _highest_descriptor() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))


def interpreter(module: str, *arguments: str) -> list[str]:
    """The command line that runs *module* of this package in a fresh interpreter."""
    package_root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    code = f"import sys; sys.path.append({package_root!r}); from {module} import main; main()"
    # -P: the working directory, which may be anybody's, must not supply modules.
    return [sys.executable, "-P", "-c", code, *arguments]


# ---- its environment, where it wakes the driver: all GPUs, nobody's code, no MPS ----

VISIBLE = "CUDA_VISIBLE_DEVICES"
# These hide GPUs from the driver, or load somebody's code into the process that uses it.
_UNWANTED = (VISIBLE, "CUDA_INJECTION64_PATH", "LD_PRELOAD")
# The driver's first call would have the MPS daemon start a server for us: here it finds none.
_INSTEAD = {"CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}


def driver_environment() -> dict[str, str]:
    """Ours, without what would change what the driver shows or whom it asks."""
    return {name: value for name, value in os.environ.items() if name not in _UNWANTED} | _INSTEAD


# ---- what a child says, message by message ----
#
# Plain tuples and dictionaries by marshal: both ends are this very program, and the child starts
# before anything larger is imported.

Message = tuple[Any, ...]


def send(pipe: int, *message: Any) -> None:
    left = frame(message)
    while left:
        left = left[os.write(pipe, left) :]


def frame(message: Message) -> bytes:
    """A message as it goes through a pipe: its length, then its body."""
    body = marshal.dumps(message)
    return len(body).to_bytes(4, "little") + body


class Inbox:
    """Puts messages together from what a pipe hands out."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, part: bytes) -> Iterator[Message]:
        self._bytes += part
        while len(self._bytes) >= 4:
            end = 4 + int.from_bytes(self._bytes[:4], "little")
            if len(self._bytes) < end:
                return
            body = bytes(self._bytes[4:end])
            del self._bytes[:end]
            yield marshal.loads(body)

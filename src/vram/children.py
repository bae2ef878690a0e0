"""Processes of our own, for calls that may never return: started, heard until a deadline, ended, reaped.

A fork is cheapest. But a forked child keeps every device file its parent has open alive,
and copies only one of its threads: where there is a CUDA library or a second thread, a
fresh interpreter is started instead.

A process is signalled by its pidfd, or, with its group, before it is reaped: no signal reaches one that was
given its pid later. Deadlines are moments of ``time.monotonic()`` that nothing extends. A child writes frames
(a length, then so many bytes) or lines, both of limited length.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

if TYPE_CHECKING:
    from subprocess import Popen

_NULL = os.devnull
_PIPE_NBYTES = 1 << 20  # a full pipe would hold the child up while its parent reads elsewhere
_PORTION_NBYTES = 1 << 18
MAX_FRAME = 1 << 28
MAX_LINE = 1 << 24

Link = Literal["pipe", "stream", "packets"]
"""From child to parent; both ways as a stream; both ways as packets, which may carry descriptors."""
Sent = Literal["sent", "gone", "denied"]
Content = TypeVar("Content")


class LocalPidHandle:
    """One process while the descriptor is open: its pid may be reused meanwhile, this never is."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd

    def __enter__(self) -> LocalPidHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def pid_in_proc(self) -> int | None:
        """The pid under which /proc shows this process now; None once it is gone, or not shown there.

        The kernel writes this line for the PID namespace that /proc was mounted in. Where
        that is another one than ours, a pid read from /proc names another process for us.
        """
        try:
            with open(f"/proc/self/fdinfo/{self.pidfd}", "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            return None
        found = next((line for line in lines if line.startswith(b"Pid:")), b"Pid: -1")
        number = int(found.split()[1])
        return number if number > 0 else None

    def send(self, number: int) -> Sent:
        """Send a signal to this process and to no other."""
        from signal import pidfd_send_signal

        try:
            pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return "gone"
        except PermissionError:
            return "denied"
        return "sent"

    def ended(self, timeout_s: float = 0.0) -> bool:
        """Whether it has ended within *timeout_s*; its files are closed by then, reaped or not."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout_s) * 1000))


class Child(LocalPidHandle):
    """A started child: what it writes comes out of ``pipe``. ``exit_code`` is None until it is reaped."""

    def __init__(self, pid: int, pipe: int, pidfd: int | None = None) -> None:
        self.pipe = pipe
        self.exit_code: int | None = None
        self._reaped = False
        try:
            super().__init__(pid, os.pidfd_open(pid) if pidfd is None else pidfd)
        except OSError:  # SIGCHLD is ignored here, so it was reaped by the kernel already
            super().__init__(pid, -1)
            self._reaped = True

    def send(self, number: int) -> Sent:
        """Send a signal to it, unless it is reaped."""
        return "gone" if self._reaped else super().send(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within *timeout_s*; then it is reaped."""
        if not self._reaped and self.ended(timeout_s):
            self._reaped = True
            self.exit_code = self._reap()
            self.close()
        return self._reaped

    def _reap(self) -> int | None:
        with suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return None

    def end(self, grace_s: float) -> bool:
        """Kill it and wait for at most *grace_s*; False where it cannot die (state D)."""
        if not self.wait(0.0):
            from signal import SIGKILL

            self.send(SIGKILL)
        return self.wait(grace_s)

    def signal_group(self, number: int) -> None:
        """Send a signal to it and to all that it started; it must have been started apart."""
        if not self._reaped:  # its number is its own until then
            with suppress(ChildProcessError, ProcessLookupError, PermissionError):
                # Fails where the kernel has reaped it, since SIGCHLD is ignored here.
                os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                os.killpg(self.pid, number)

    def end_group(self, grace_s: float) -> bool:
        """Kill it and all that it started, also where it has ended before them."""
        from signal import SIGKILL

        self.signal_group(SIGKILL)
        return self.end(grace_s)

    def hang_up(self) -> None:
        """Stop listening: what it still writes fails."""
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def parts(self, until: float) -> Iterator[bytes]:
        """What it writes, as it comes, until it closes its pipe or ends. Raises TimeoutError after *until*.

        What it has written in time is returned after *until*, too. A child of its own that keeps the pipe
        open is not waited for.
        """
        poll = select.poll()
        for descriptor in (self.pipe, self.pidfd):
            if descriptor >= 0:
                poll.register(descriptor, select.POLLIN)
        while ready := poll.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                part = os.read(self.pipe, _PORTION_NBYTES)
            except BlockingIOError:
                if any(descriptor == self.pipe for descriptor, _ in ready):
                    continue
                return
            except ConnectionResetError:  # it ended before it had read all that was sent to it
                return
            if not part:
                return
            yield part
        raise TimeoutError

    def lines(self, until: float, max_nbytes: int = MAX_LINE) -> Iterator[bytes]:
        """Its whole lines, without their ends; otherwise as :meth:`parts`."""
        lines = LineInbox(max_nbytes)
        for part in self.parts(until):
            yield from lines.add(part)


class ChildProgram(Child):
    """A child that talks through its standard streams, those of them that are pipes."""

    def __init__(self, process: Popen[bytes], pidfd: int) -> None:
        assert process.stdout is not None
        super().__init__(process.pid, process.stdout.fileno(), pidfd)
        os.set_blocking(self.pipe, False)
        self._process = process
        self.stdin, self.stderr = process.stdin, process.stderr

    def _reap(self) -> int:
        return self._process.wait()

    def write(self, data: bytes) -> None:
        """Write all of *data*; raises OSError where it reads no more."""
        assert self.stdin is not None
        self.stdin.write(data)
        self.stdin.flush()

    def hang_up(self) -> None:
        """Stop talking and listening to it."""
        for stream in (self.stdin, self._process.stdout, self.stderr):
            if stream is not None:
                with suppress(OSError):  # something was left to write
                    stream.close()
        self.pipe = -1


# ---- starting one ----


def may_fork() -> bool:
    """Whether a fork of this process is safe, and inherits no device file."""
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            return False
        with open("/proc/self/maps", "rb") as maps:
            return b"/libcuda.so" not in maps.read()
    except OSError:
        return False


def start(job: Callable[[int], None], command: Sequence[str], *, link: Link = "pipe") -> Child:
    """Run ``job(pipe)`` in a fork, or where that is not safe *command*, with the pipe as descriptor 3."""
    return fork(job, link=link) if may_fork() else spawn(command, link=link)


def fork(job: Callable[[int], None], *, link: Link = "pipe") -> Child:
    """Run ``job(pipe)`` in a fork, which has no other descriptor; ask :func:`may_fork` first."""
    ours, theirs = _link(link)
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
    apart: Literal["group", "session"] | None = None,
    link: Link = "pipe",
) -> Child:
    """Start a program with only a pipe as descriptor *number*; *apart*, it leads a group or a session."""
    ours, theirs = _link(link)
    quiet = [(os.POSIX_SPAWN_OPEN, standard, _NULL, os.O_RDWR, 0) for standard in (0, 1, 2)]
    groups: dict[str | None, dict[str, Any]] = {"group": {"setpgroup": 0}, "session": {"setsid": True}}
    copy = theirs
    try:
        if theirs == number:  # dup2 onto itself would leave close-on-exec set
            copy = os.dup(theirs)
        pid = os.posix_spawn(
            command[0],
            list(command),
            os.environ if environment is None else environment,
            file_actions=[*quiet, (os.POSIX_SPAWN_DUP2, copy, number)],
            **groups.get(apart, {}),
        )
    except OSError:
        os.close(ours)
        raise
    finally:
        for end in {theirs, copy}:
            os.close(end)
    return Child(pid, ours)


def start_program(command: Sequence[str], **options: Any) -> ChildProgram:
    """Start a program in a session of its own, with pipes as its standard input and output.

    Ctrl-C at the terminal is then ours to handle. *options* are those of :class:`subprocess.Popen`, which
    closes all other descriptors in it. Raises OSError where it cannot be started or watched.
    """
    from subprocess import PIPE, Popen

    pipes = {"stdin": PIPE, "stdout": PIPE}
    process = Popen(command, start_new_session=True, **{**pipes, **options})
    try:
        return ChildProgram(process, os.pidfd_open(process.pid))
    except OSError:  # we have no descriptor left
        with process:
            process.kill()
        raise


def _link(kind: Link) -> tuple[int, int]:
    """Our end and the child's."""
    if kind != "pipe":
        import socket

        packets = kind == "packets"
        here, there = socket.socketpair(type=socket.SOCK_SEQPACKET if packets else socket.SOCK_STREAM)
        here.setblocking(packets)
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
    os.closerange(pipe + 1, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)


def interpreter(module: str, *arguments: str) -> list[str]:
    """The command line that runs *module* of this package in a fresh interpreter."""
    package_root = os.path.dirname(os.path.dirname(__file__))
    # The working directory, which may be any user's, must not supply modules; -P says so from Python 3.11 on.
    path = f"sys.path[:] = [*filter(None, sys.path), {package_root!r}]"
    return [sys.executable, "-c", f"import sys; {path}; from {module} import main; main()", *arguments]


# ---- its environment, where it wakes the driver: all GPUs, no code of others, no MPS ----

VISIBLE = "CUDA_VISIBLE_DEVICES"
# These hide GPUs from the driver, or load other code into the process that uses it.
_UNWANTED = (VISIBLE, "CUDA_INJECTION64_PATH", "LD_PRELOAD")
# The driver's first call would have the MPS daemon start a server for us: here it finds none.
_INSTEAD = {"CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}


def driver_environment() -> dict[str, str]:
    """Ours, without what would change what the driver shows or whom it asks."""
    return {name: value for name, value in os.environ.items() if name not in _UNWANTED} | _INSTEAD


# ---- what it says: frames for one that says much, lines of JSON for all others ----


def send(pipe: int, body: bytes) -> None:
    """Write one frame."""
    left = frame(body)
    while left:
        left = left[os.write(pipe, left) :]


def frame(body: bytes) -> bytes:
    """A body as it goes through a pipe, after its length."""
    return len(body).to_bytes(4, "little") + body


class Inbox(Generic[Content]):
    """Puts frames together from what a pipe hands out.

    Decoded by marshal, unless another function is named: a child that reads NVML starts before anything
    larger is imported, and both ends are this very program.
    """

    def __init__(self, decode: Callable[[bytes], Content] = marshal.loads) -> None:
        self._decode = decode
        self._bytes = bytearray()

    def add(self, part: bytes) -> Iterator[Content]:
        """Yield what is complete with *part*; raises ValueError where a frame is longer than any of ours."""
        self._bytes += part
        while len(self._bytes) >= 4:
            nbytes = int.from_bytes(self._bytes[:4], "little")
            _require_length(nbytes, MAX_FRAME)
            if len(self._bytes) < 4 + nbytes:
                return
            body = bytes(self._bytes[4 : 4 + nbytes])
            del self._bytes[: 4 + nbytes]
            yield self._decode(body)


class LineInbox:
    """Puts lines together from what a pipe hands out, each once: one of megabytes is not searched again."""

    def __init__(self, max_nbytes: int = MAX_LINE) -> None:
        self._max_nbytes = max_nbytes
        self._parts: list[bytes] = []
        self._nbytes = 0

    def add(self, part: bytes) -> list[bytes]:
        """Return the lines that are complete with *part*; raises ValueError where one is too long."""
        *ends, rest = part.split(b"\n")
        lines = []
        for end in ends:
            _require_length(self._nbytes + len(end), self._max_nbytes)
            lines.append(b"".join((*self._parts, end)))
            self._parts.clear()
            self._nbytes = 0
        self._parts.append(rest)
        self._nbytes += len(rest)
        _require_length(self._nbytes, self._max_nbytes)
        return lines


def _require_length(nbytes: int, max_nbytes: int) -> None:
    if nbytes > max_nbytes:
        raise ValueError(f"a process of ours wrote {nbytes} bytes where at most {max_nbytes} are expected")

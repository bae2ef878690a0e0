"""What a process waits for, seen from outside: its open files, and threads that no open file can wake.

pidfd_getfd(2) gives us copies of its descriptors. They share the file with the process, whatever network,
mount or user namespace it is in, so the kernel itself says when something arrives: nothing is asked again and
again. A copy keeps the file open, too: a connection that the process closes is closed for its peer only when
ours is. So copies are kept only while the process is stopped, and a running process is read by copies that
are gone at once.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import stat
import struct
import termios
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from vram.children import LocalPidHandle
from vram.model.sleeping import HiddenWait, WaitFacts, WakeFile, WakeKind
from vram.payloads.procfs import ProcessFolder, is_driver_thread

_PIDFD_GETFD = 438  # on all processors
# A program with more open files than that is not put to sleep by what its files say.
MAX_FILES = 16384
_TCP_INFO_NBYTES, _TCP_UNACKED_AT = 32, 24
# No eventfd: only threads of its own write to it, the driver's among them, which run while it sleeps.
_EVENTS = {"anon_inode:inotify"}
_STATX_NBYTES, _STATX_MODE_AT, _STATX_TYPE = 256, 28, 1
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000
_IO_URING = "anon_inode:[io_uring]"
_SOCKETS = {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}
_READABLE = select.POLLIN | select.POLLHUP | select.POLLERR

# System calls by number: those that wait, and which of their arguments is a time-out.
_CALLS: dict[str, dict[int, str]] = {
    "x86_64": {
        202: "futex", 35: "nanosleep", 230: "clock_nanosleep", 232: "epoll_wait", 281: "epoll_pwait",
        7: "poll", 271: "ppoll", 23: "select", 270: "pselect6", 426: "io_uring_enter", 441: "epoll_pwait2",
    },
    "aarch64": {
        98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 22: "epoll_pwait", 73: "ppoll",
        72: "pselect6", 426: "io_uring_enter", 441: "epoll_pwait2",
    },
}  # fmt: skip
_TIMEOUT_IS_MILLISECONDS = {"epoll_wait": 3, "epoll_pwait": 3, "poll": 2}
_TIMEOUT_IS_POINTER = {"ppoll": 2, "select": 4, "pselect6": 4, "epoll_pwait2": 3, "futex": 3}
_SLEEPS = {"nanosleep", "clock_nanosleep"}
_FUTEX_COMMAND, _FUTEX_PRIVATE, _FUTEX_WAITS = 0x7F, 0x80, {0, 9}  # FUTEX_WAIT, FUTEX_WAIT_BITSET
_REALTIME = {1, 2, 6}  # SCHED_FIFO, SCHED_RR, SCHED_DEADLINE
_POLICY_AT = 38  # among the fields of stat behind the name
_WATCHDOG = (b"WATCHDOG_USEC=", b"WATCHDOG_PID=")

_libc = ctypes.CDLL(None, use_errno=True)


class _Copied(NamedTuple):
    """A file of the process by which it may be wanted: its number there, our copy, and what it is."""

    fd: int
    copy: int
    kind: WakeKind
    address: str = ""
    port: int | None = None


class LocalWaits:
    """Reads processes of this machine."""

    def read(self, handle: LocalPidHandle) -> WaitFacts:
        """By what the process is wanted, and what of its waiting cannot be seen. It may run meanwhile."""
        pid = handle.pid
        try:
            with ProcessFolder("/proc", pid) as folder:
                hidden, realtime = _threads(folder)
                watchdog_s = _watchdog(folder)
        except OSError:
            return WaitFacts(pid=pid, files=None, denied="it has ended")
        files: list[WakeFile] = []
        try:
            for each in _copies(handle, hidden):
                try:
                    files.append(_described(pid, each))
                finally:
                    _close(each.copy, handle)
        except OSError as error:
            return WaitFacts(
                pid=pid,
                files=None,
                denied=_denied(error),
                hidden=hidden,
                realtime=realtime,
                watchdog_s=watchdog_s,
            )
        return WaitFacts(pid=pid, files=tuple(files), hidden=hidden, realtime=realtime, watchdog_s=watchdog_s)

    def watch(
        self, handle: LocalPidHandle, ports: Sequence[int] = (), ignored: Mapping[int, int] | None = None
    ) -> LocalWatch:
        """Watch the files of a process that is stopped, for as long as it is. Raises OSError.

        *ignored* is what the process had left unread in some of them, by their number, when it was idle.
        """
        return LocalWatch(handle, ports, ignored or {})


class LocalWatch:
    """Copies of the files of one stopped process. ``fileno`` can be read when something may have arrived."""

    def __init__(self, handle: LocalPidHandle, ports: Sequence[int], ignored: Mapping[int, int]) -> None:
        self._pid, self._handle = handle.pid, handle
        self._ignored = dict(ignored)
        self._files: dict[int, _Copied] = {}
        self._epoll = select.epoll()
        try:
            for each in _copies(handle, {}):
                if ports and each.port not in ports:
                    _close(each.copy, handle)
                    continue
                self._files[each.copy] = each
                # Edge-triggered: what was left unread, and the end of a connection, are told once.
                with suppress(PermissionError):  # a file that cannot be waited for
                    self._epoll.register(each.copy, select.EPOLLIN | select.EPOLLET)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        return self._epoll.fileno()

    def close(self) -> None:
        """Give up all copies: the process is about to run, or has ended."""
        self._epoll.close()
        for copy in self._files:
            _close(copy, self._handle)
        self._files.clear()

    def __len__(self) -> int:
        return len(self._files)

    def wanted(self, *, all_files: bool = False) -> WakeFile | None:
        """The first file in which something new arrived; with *all_files* by reading each of them."""
        ready = self._files if all_files else dict(self._epoll.poll(0, max(1, len(self._files))))
        for copy in ready:
            found = _described(self._pid, self._files[copy])
            if found.unread > self._ignored.get(found.fd, 0):
                return found
        return None


def _copies(handle: LocalPidHandle, hidden: dict[HiddenWait, int]) -> Iterator[_Copied]:
    """Copies of all files by which it may be wanted; the caller closes each. Raises OSError where denied."""
    pid = handle.pid
    with ProcessFolder("/proc", pid) as folder:
        numbers = sorted(map(int, folder.names("fd") or os.listdir(f"/proc/{pid}/fd")))
        if len(numbers) > MAX_FILES:
            raise OSError(errno.EMFILE, f"it has more than {MAX_FILES} files open")
        links = {fd: (folder.link(f"fd/{fd}") or b"").decode("utf-8", "backslashreplace") for fd in numbers}
        own = _own_pipes(folder, links)
        for fd, link in links.items():
            if link == _IO_URING:
                hidden["io_uring"] = hidden.get("io_uring", 0) + 1
            if link in own or not (_may_wake(link) or (link.startswith("/") and _is_fifo(folder, fd))):
                continue
            copy = _getfd(handle.pidfd, fd)
            if copy is None:
                continue
            try:
                found = _classify(fd, copy, link)
            except BaseException:
                _close(copy, handle)
                raise
            if found is None:
                _close(copy, handle)
                continue
            yield found


def _close(copy: int, handle: LocalPidHandle) -> None:
    """Close our copy. Where the process has ended it is the last one, and SO_LINGER may hold us up."""
    if handle.ended():
        with suppress(OSError), socket.socket(fileno=os.dup(copy)) as last:
            last.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("2i", 0, 0))
    os.close(copy)


def _own_pipes(folder: ProcessFolder, links: Mapping[int, str]) -> set[str]:
    """Pipes of which it has both ends: only its own threads write there, and the driver's run meanwhile."""
    ends = Counter(link for link in links.values() if link.startswith("pipe:"))
    return {
        link for fd, link in links.items() if ends[link] > 1 and _mode(folder, fd) in (os.O_WRONLY, os.O_RDWR)
    }


def _mode(folder: ProcessFolder, fd: int) -> int:
    for line in (folder.read(f"fdinfo/{fd}") or b"").splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8) & os.O_ACCMODE
    return os.O_RDONLY


def _may_wake(link: str) -> bool:
    """By its name in /proc alone: what is copied is judged again."""
    return link.startswith(("socket:", "pipe:", "/dev/pts/", "/dev/tty")) or link in _EVENTS


def _is_fifo(folder: ProcessFolder, fd: int) -> bool:
    """Whether it is a named pipe, as the kernel knows without asking the file system.

    A file system of a user's (FUSE) is asked at each stat, and at each close of a copy: it may never answer.
    """
    file = folder.open(f"fd/{fd}")
    if file is None:
        return False
    try:
        answer = ctypes.create_string_buffer(_STATX_NBYTES)
        flags = ctypes.c_int(_AT_EMPTY_PATH | _AT_STATX_DONT_SYNC)
        if _libc.statx(ctypes.c_int(file), b"", flags, ctypes.c_uint(_STATX_TYPE), answer):
            return False
        return stat.S_ISFIFO(struct.unpack_from("H", answer, _STATX_MODE_AT)[0])
    except AttributeError:  # before glibc 2.28
        return False
    finally:
        os.close(file)


def _getfd(pidfd: int, fd: int) -> int | None:
    """Our copy of its descriptor *fd*; None where it was closed meanwhile. Raises OSError where denied."""
    copy: int = _libc.syscall(
        ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(pidfd), ctypes.c_int(fd), ctypes.c_uint(0)
    )
    if copy >= 0:
        return copy
    code = ctypes.get_errno()
    if code == errno.EBADF:
        return None
    raise OSError(code, os.strerror(code))


def _denied(error: OSError) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        return "no permission to copy its open files"
    if error.errno == errno.ENOSYS:
        return "this kernel cannot copy open files of other processes: that needs Linux 5.6"
    return error.strerror or str(error)


def _classify(fd: int, copy: int, link: str) -> _Copied | None:
    mode = os.fstat(copy).st_mode
    if stat.S_ISSOCK(mode):
        return _socket(fd, copy)
    if stat.S_ISFIFO(mode):
        # The end that writes is never read.
        if fcntl.fcntl(copy, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
            return None
        return _Copied(fd, copy, "pipe", link if link.startswith("/") else "")
    if stat.S_ISCHR(mode) and os.isatty(copy):
        return _Copied(fd, copy, "terminal", link)
    return _Copied(fd, copy, "event") if link in _EVENTS else None


def _socket(fd: int, copy: int) -> _Copied | None:
    with socket.socket(fileno=os.dup(copy)) as seen:
        if seen.family not in _SOCKETS:
            return None
        address, port = _address(seen)
        if seen.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return _Copied(fd, copy, "listening", address, port)
        if seen.type == socket.SOCK_DGRAM:
            # One that has no address of its own yet is sent nothing.
            return _Copied(fd, copy, "datagrams", address, port) if address and port != 0 else None
        return _Copied(fd, copy, "connection", address, port)


def _address(seen: socket.socket) -> tuple[str, int | None]:
    """Where its own end is, as people write it."""
    try:
        name = seen.getsockname()
    except OSError:
        return "", None
    if seen.family == socket.AF_UNIX:
        text = name.decode("utf-8", "backslashreplace") if isinstance(name, bytes) else str(name)
        return text.replace("\0", "@"), None
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}", name[1]


def _described(pid: int, each: _Copied) -> WakeFile:
    return WakeFile(
        pid=pid, fd=each.fd, kind=each.kind, address=each.address, port=each.port, unread=_unread(each)
    )


def _unread(each: _Copied) -> int:
    """How much waits in it: bytes, connections, or 1. That a connection has ended is no request."""
    poll = select.poll()
    poll.register(each.copy, select.POLLIN)
    ready = poll.poll(0)
    if not ready or not ready[0][1] & _READABLE:
        return 0
    if each.kind == "listening":
        return max(1, _backlog(each.copy))
    if each.kind == "connection":
        return _pending(each.copy)
    if each.kind in ("datagrams", "pipe"):
        return max(1, _pending(each.copy))
    return 1


def _pending(copy: int) -> int:
    count = array.array("i", [0])
    try:
        fcntl.ioctl(copy, termios.FIONREAD, count)
    except OSError:
        return 1
    return count[0]


def _backlog(copy: int) -> int:
    """Connections that wait to be accepted; 0 where only TCP would say."""
    with socket.socket(fileno=os.dup(copy)) as seen:
        if seen.family == socket.AF_UNIX:
            return 0
        try:
            raw = seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_NBYTES)
        except OSError:
            return 0
    return int(struct.unpack_from("I", raw, _TCP_UNACKED_AT)[0]) if len(raw) >= _TCP_INFO_NBYTES else 0


# ---- threads ----


def _threads(folder: ProcessFolder) -> tuple[dict[HiddenWait, int], int]:
    """What its own threads wait for that no file shows, and how many have a real-time priority."""
    hidden: dict[HiddenWait, int] = {}
    realtime = 0
    calls = _CALLS.get(platform.machine(), {})
    for name in folder.names("task"):
        seen = folder.stat(int(name))
        if seen is None or is_driver_thread(seen.name):
            continue
        wait = _hidden_wait((folder.read(f"task/{name}/syscall") or b"").split(), calls)
        if wait is not None:
            hidden[wait] = hidden.get(wait, 0) + 1
        realtime += _policy(folder.read(f"task/{name}/stat") or b"") in _REALTIME
    return hidden, realtime


def _hidden_wait(words: Sequence[bytes], calls: Mapping[int, str]) -> HiddenWait | None:
    if words[:1] == [b"running"]:
        return "running"
    if len(words) < 7:  # -1 and two registers, or not readable
        return None
    call = calls.get(int(words[0]), "")
    arguments = [int(word, 16) for word in words[1:7]]
    if call in _SLEEPS:
        return "time"
    if call == "futex":
        command = arguments[1] & _FUTEX_COMMAND
        if command not in _FUTEX_WAITS:
            return None
        if not arguments[1] & _FUTEX_PRIVATE:
            return "shared memory"
    if call in _TIMEOUT_IS_MILLISECONDS:
        return "time" if ctypes.c_int(arguments[_TIMEOUT_IS_MILLISECONDS[call]]).value >= 0 else None
    if call in _TIMEOUT_IS_POINTER:
        return "time" if arguments[_TIMEOUT_IS_POINTER[call]] else None
    return None


def _policy(line: bytes) -> int:
    fields = line[line.rfind(b")") + 2 :].split()
    return int(fields[_POLICY_AT]) if len(fields) > _POLICY_AT else 0


def _watchdog(folder: ProcessFolder) -> float | None:
    """How often systemd wants a sign of life from it, as it was told when it was started."""
    found: dict[bytes, int] = {}
    for word in (folder.read("environ", 2 << 20) or b"").split(b"\0"):
        for name in _WATCHDOG:
            if word.startswith(name) and word[len(name) :].isdigit():
                found[name] = int(word[len(name) :])
    usec, pid = (found.get(name) for name in _WATCHDOG)
    return usec / 1e6 if usec and pid in (None, folder.pid) else None

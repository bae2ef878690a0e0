"""Where the code of one run meets vram: it asks for permission to start, and answers there.

Injectors that only make a process run some code cannot know what becomes of it. So the code connects
first, and does nothing before it has received "go". Whether that was sent is decided once, by us: a cancelled
run never starts, nor does one whose vram has died. The kernel says which process is at the other end. What it
sends back is not trusted, and limited in size.

A process that sees our files finds the code and the socket in a private folder, in which nothing belongs to
it. It runs what it finds under the folder's name. So no other user may be able to rename anything on the path
to it. To another, such as one in a container, no file is given: the socket has an abstract name in its
network namespace, and the code comes through it. Everybody there may listen under that name once we do not.
So the code begins with a secret that only we and the process know; nothing that comes without it is run.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import struct
import time
from contextlib import suppress
from typing import TypeVar

from vram import folders, untrusted
from vram.errors import NoSuchProcess, NotReachable, Refused, TimedOut
from vram.payloads import agent, delivery
from vram.payloads.procfs import started_at
from vram.reach import payload, sockets
from vram.reach.deadline import interrupted
from vram.reach.payload import MAX_ANSWER_LENGTH, PayloadRequest
from vram.reach.target_process import ENDING_S, TargetProcess, died, has_ended
from vram.reach.target_root import sees_our_files

Drop = TypeVar("Drop", bound="VisitDrop")

_PAYLOAD, _SOCKET, _SCRIPT = "payload.py", "answers", "script.py"
LIBRARY = "visitor.so"
_NAMES = (_PAYLOAD, _SOCKET, _SCRIPT, LIBRARY)
_PREFIX = "visit-"
# Root's own folders are closed to others. Only root can rename what is in /run, and this folder cannot be
# listed, so that no other user learns the names in it.
_ROOTS_FOLDER = "/run/vram-visits"
_ABANDONED_S = 60.0

# Runs in the main thread, in __main__: it leaves no name there, returns at once, and raises nothing of its
# own. What a signal's handler raises just then is the program's, and is raised there again.
_STARTER = """\
try:__import__("posix").getpid()=={pid} and __import__("_thread").start_new_thread(exec,({code!r},{{}}))
except KeyboardInterrupt:__import__("_thread").interrupt_main()
except Exception:pass
"""

_CODE = """\
try:
 with open({path!r},encoding="utf-8") as f:t=f.read()
 exec(t,{{"__name__":"vram_visit"}})
except BaseException:pass
"""


# Reads the payload from the socket, whole: the socket's own timeouts, so that no function is needed for that.
_CODE_OF_SOCKET = """\
try:
 import _socket
 s=_socket.socket(1,524289)
 s.setsockopt(1,20,{timeout});s.setsockopt(1,21,{timeout})
 s.connect({name})
 if s.recv(32,256)=={secret}:exec(s.recv(int(s.recv(8,256)),256),{{"__name__":"vram_visit","connection":s}})
 s.close()
except BaseException:pass
"""


class PrivateFolder:
    """A folder for one run, with a socket in it; files are added by name."""

    def __init__(self, process: TargetProcess) -> None:
        self._is_ours = process.is_ours
        self.path = make_folder(process)
        self.descriptor = _open_folder(self.path)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # A user who knows the name can enter root's folder; the kernel says who connects.
        os.fchmod(self.descriptor, 0o700 if self._is_ours else 0o711)

    def write(self, name: str, content: bytes, mode: int) -> int:
        """A descriptor of a new file. Where the process is our own user's, only that user may use it."""
        mode = mode & 0o700 if self._is_ours else mode
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self.descriptor)
        os.fchmod(file, mode)
        with os.fdopen(os.dup(file), "wb") as stream:
            stream.write(content)
        return file

    def listen(self) -> None:
        self.listener.bind(agent.address(self.descriptor, _SOCKET))
        os.chmod(_SOCKET, 0o600 if self._is_ours else 0o666, dir_fd=self.descriptor)
        self.listener.listen(8)

    def close(self, left: str | None = None) -> None:
        """Remove it; the file *left*, and with it the folder, stays."""
        self.listener.close()
        _remove(self.path, self.descriptor, left)
        os.close(self.descriptor)


class NamedSocket:
    """A socket with an abstract name in the network of the process, and a secret that proves who we are."""

    def __init__(self, process: TargetProcess, until: float) -> None:
        try:
            self.listener, self.name = sockets.listen_beside(process.pid, until)
        except sockets.NotConnected as error:
            raise NotReachable(
                str(error), hint="to enter the network of a container takes CAP_SYS_ADMIN"
            ) from error
        self.secret = os.urandom(16).hex().encode()
        # The child that made it went by the number: it was still this process's.
        if started_at(process.pid) != process.target.process.started_at:
            self.close()
            raise NoSuchProcess(f"process {process.pid} has exited")

    def close(self) -> None:
        self.listener.close()


class VisitDrop:
    """Made for one process and one run; after close(), nothing of it is left and nothing of it can run."""

    def __init__(self, process: TargetProcess, until: float) -> None:
        self._process, self._pid, self._until = process, process.pid, until
        self._connection: socket.socket | None = None
        self.place = self._make_place()
        try:
            self._prepare()
            if isinstance(self.place, PrivateFolder):
                self.place.listen()
            self.place.listener.setblocking(False)
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """The private folder."""
        assert isinstance(self.place, PrivateFolder)
        return self.place.path

    def _make_place(self) -> PrivateFolder | NamedSocket:
        if sees_our_files(self._pid):
            return PrivateFolder(self._process)
        return NamedSocket(self._process, self._until)

    def _prepare(self) -> None:
        """Make what shall run in the process."""

    def _greeting(self) -> bytes:
        """What it is sent when it connects; "go" comes last."""
        return delivery.GO

    def __enter__(self: Drop) -> Drop:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self.place.close()

    def answer(self, pidfd: int) -> bytes:
        """Wait for the answer; raises why there is none, and then none will ever come."""
        if not self.wait(pidfd, self._until):
            raise self.timed_out()
        assert self._connection is not None
        try:
            return untrusted.receive(
                self._connection, nbytes=MAX_ANSWER_LENGTH, until=self._until, pidfd=pidfd
            )
        except untrusted.Rejected as error:
            if error.code == "late":
                message = f"pid {self._pid} started but did not finish in time; it continues on its own"
                raise TimedOut(message) from error
            if error.code == "too-large":
                message = f"pid {self._pid} answered with more than {MAX_ANSWER_LENGTH >> 20} MiB"
                raise NotReachable(message) from error
            # A process that ends closes its files a moment before it is seen to have ended.
            if has_ended(pidfd, ENDING_S):
                raise died(self._pid) from error
            raise NotReachable(f"pid {self._pid} stopped in the middle of its answer") from error

    def wait(self, pidfd: int, until: float) -> bool:
        """Whether the process that was meant has connected, and was sent "go". Raises where it ended."""
        while self._connection is None:
            if not self._has_caller(pidfd, until):
                return False
            try:
                connection, _ = self.place.listener.accept()
            except OSError:  # it disconnected at the same moment
                continue
            # Until the process ends, no other process gets its pid.
            if agent.peer(connection)[0] == self._pid and not has_ended(pidfd):
                with suppress(OSError):
                    connection.settimeout(max(0.001, self._until - time.monotonic()))
                    connection.sendall(self._greeting())
                    connection.setblocking(False)
                    self._connection = connection
                    self.place.listener.close()  # a second connection gets no answer
            if self._connection is None:
                connection.close()
        return True

    def cancel(self) -> None:
        """From now on "go" is not sent."""
        self.place.listener.close()

    def _has_caller(self, pidfd: int, until: float) -> bool:
        """Whether a connection comes before the deadline. Raises where the process ended."""
        left_s = until - time.monotonic()
        poll = select.poll()
        poll.register(self.place.listener.fileno(), select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        if (stop := interrupted.get()) is not None:
            poll.register(stop, select.POLLIN)
        ready = dict(poll.poll(max(0.0, left_s) * 1000))
        if stop in ready:
            raise KeyboardInterrupt
        if pidfd in ready:
            raise died(self._pid)
        return left_s > 0 and bool(ready)

    def timed_out(self) -> Refused:
        return TimedOut(
            f"pid {self._pid} did not reach a safe point in time; nothing was done",
            hint="its main thread is blocked or busy outside Python; wait longer with --deadline",
        )


class ScriptDrop(VisitDrop):
    """A payload for a Python, as a text."""

    def __init__(self, request: PayloadRequest, process: TargetProcess, until: float) -> None:
        self._request = request
        self._script: int | None = None
        self._text = b""
        super().__init__(process, until)

    def _prepare(self) -> None:
        pid = self._process.pid_inside
        if isinstance(self.place, PrivateFolder):
            fields = self._request.with_limits(pid, self._until, folder=self.place.path)
            text = payload.expression(self._request.payload, "deliver", fields)
            os.close(self.place.write(_PAYLOAD, text.encode(), 0o644))
            return
        carried = self._request.read_files()
        sizes = [(name, len(content)) for name, content in carried]
        fields = self._request.with_limits(pid, self._until, files=sizes)
        self._text = payload.expression(self._request.payload, "deliver", fields, extra="connection").encode()
        self._carried = b"".join(content for _, content in carried)

    def _greeting(self) -> bytes:
        if isinstance(self.place, PrivateFolder):
            return delivery.GO
        return b"%s%8d%s%s%s" % (
            self.place.secret,
            len(self._text),
            self._text,
            self._carried,
            delivery.GO,
        )

    def starter(self, afterwards: str = "") -> str:
        """A few lines that start a thread for the payload; *afterwards* runs in it when all is done."""
        if isinstance(self.place, PrivateFolder):
            code = _CODE.format(path=os.path.join(self.place.path, _PAYLOAD))
        else:
            patience_s = max(1, int(self._until - time.monotonic()) + 1)
            code = _CODE_OF_SOCKET.format(
                name=b"\0" + self.place.name.encode(),
                secret=self.place.secret,
                timeout=struct.pack("@ll", patience_s, 0),
            )
        return _STARTER.format(pid=self._process.pid_inside, code=code + afterwards)

    def script(self) -> str:
        """The starter as a file. When the run is cancelled it stays, empty: where it is missing, Python
        prints an error on the target's standard error."""
        assert isinstance(self.place, PrivateFolder)
        self._script = self.place.write(_SCRIPT, self.starter().encode(), 0o644)
        return os.path.join(self.place.path, _SCRIPT)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if not isinstance(self.place, PrivateFolder):
            self.place.close()
            return
        left = _SCRIPT if self._script is not None and self._connection is None else None
        if self._script is not None:
            os.ftruncate(self._script, 0)
            os.close(self._script)
        self.place.close(left)

    def close_script(self) -> None:
        """The target will not open it any more."""
        if self._script is not None:
            os.close(self._script)
            self._script = None


def is_left_behind(script: str, pid: int) -> bool:
    """Whether *script* was made for *pid* by a vram of ours that has been killed since.

    The path was read from the memory of *pid*, which may have written anything there.
    """
    path, name = os.path.split(script)
    above, folder_name = os.path.split(path)
    if name != _SCRIPT or not folder_name.startswith(f"{_PREFIX}{pid}-") or above not in _bases():
        return False
    try:
        folder = _open_folder(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        return not _is_listened_to(folder)
    finally:
        os.close(folder)


def remove_left_behind(script: str, pid: int) -> None:
    """Remove what :func:`is_left_behind` found, once nothing will run it any more."""
    if is_left_behind(script, pid):
        path = os.path.dirname(script)
        with suppress(OSError):
            folder = _open_folder(path)
            _remove(path, folder)
            os.close(folder)


def _bases() -> tuple[str, str]:
    return _ROOTS_FOLDER, agent.folders()[0]


def make_folder(process: TargetProcess) -> str:
    path = agent.folders()[0]
    try:
        path = _own_base(path) if process.is_ours else _roots_base()
        _sweep(path)
        named = f"{_PREFIX}{process.pid}-{process.target.process.started_at}-"
        import tempfile

        return tempfile.mkdtemp(prefix=named, dir=path)
    except OSError as error:
        raise NotReachable(
            f"no private folder for the script: {error.filename or path}: {error.strerror}",
            hint="make it a folder that only you can access (mode 0700), or set XDG_RUNTIME_DIR",
        ) from error


def _own_base(path: str) -> str:
    try:
        os.close(agent.open_folder(path, make=True))
    except OSError:
        if os.geteuid():
            raise
        return _roots_base()  # as with sudo, where it is another user's
    return path


def _roots_base(path: str = _ROOTS_FOLDER) -> str:
    above, missing = folders.nearest(path)
    try:
        if missing:
            with suppress(FileExistsError):
                os.mkdir(missing[0], 0o711, dir_fd=above)
                os.chmod(missing[0], 0o711, dir_fd=above)
    finally:
        os.close(above)
    os.close(_open_folder(path))
    return path


def _sweep(path: str) -> None:
    """Remove what was left for processes that have ended, and what killed runs of vram left."""
    for name in os.listdir(path):
        pid, _, rest = name.removeprefix(_PREFIX).partition("-")
        if not name.startswith(_PREFIX) or not pid.isdecimal():
            continue
        with suppress(OSError):
            whole = os.path.join(path, name)
            folder = _open_folder(whole)
            try:
                if started_at(int(pid)) != _number(rest) or _is_abandoned(folder):
                    _remove(whole, folder)
            finally:
                os.close(folder)


def _is_abandoned(folder: int) -> bool:
    """Whether nothing listens there any more. A script that a process may still run stays."""
    if time.time() - os.fstat(folder).st_mtime < _ABANDONED_S or _SCRIPT in os.listdir(folder):
        return False
    return not _is_listened_to(folder)


def _is_listened_to(folder: int) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as probe:
        probe.setblocking(False)
        try:
            probe.connect(agent.address(folder, _SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _open_folder(path: str) -> int:
    """Open a folder that is ours. Raises OSError for anything else of that name."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(folder)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        os.close(folder)
        raise PermissionError(1, "others can change files there", path)
    return folder


def _remove(path: str, folder: int, left: str | None = None) -> None:
    """Remove the files that a run makes, by name, and the folder: nothing below it is walked."""
    for name in _NAMES:
        if name != left:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
    if left is None:
        with suppress(OSError):
            os.rmdir(path)


def _number(text: str) -> int | None:
    digits = text.partition("-")[0]
    return int(digits) if digits.isdecimal() else None

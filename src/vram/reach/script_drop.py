"""A private folder for one visit: the code to run, and the socket on which it asks for the word to go.

Ways that only make a process run some code cannot tell what becomes of it. So the code
connects first, and does nothing before it has heard "go" there. Whether it was told so is
decided once, by us: called off, it never runs, and nor does it when we have died meanwhile.
The kernel says which process is at the other end; nothing in the folder belongs to the target.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from contextlib import suppress
from types import TracebackType

from vram.errors import NoSuchProcess, NotReachable, Refused, TimedOut
from vram.host.local.procfs import started_at
from vram.payloads import agent, delivery
from vram.reach import payload_source
from vram.reach.python_process import PythonProcess
from vram.reach.request import LONGEST_ANSWER, Request

_PAYLOAD, _SOCKET, _SCRIPT = "payload.py", "answers", "script.py"
_NAMES = (_PAYLOAD, _SOCKET, _SCRIPT)
_ENDING_S = 0.5
_ABANDONED_S = 60.0

# Runs in the main thread, in __main__: it leaves no name there, takes no time, and raises nothing of
# its own. What a signal's handler raises just then is the program's: it goes where it would have gone.
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


class ScriptDrop:
    """Made for one process and one visit; closed, nothing of it is left and nothing of it can run."""

    def __init__(self, request: Request, process: PythonProcess, until: float) -> None:
        self._pid, self._pid_inside = process.pid, process.pid_inside
        self._until = until
        self._connection: socket.socket | None = None
        self._script: int | None = None
        self.path = _make_folder(process)
        self._folder = _open_folder(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # Root's folder is passed through by whoever knows its name; the kernel names who connects.
            os.fchmod(self._folder, 0o700 if process.is_ours else 0o711)
            whole = request.whole(process.pid_inside, until, folder=self.path)
            text = payload_source.expression(request.payload, "deliver", whole)
            os.close(self._write(_PAYLOAD, text, 0o600 if process.is_ours else 0o644))
            self._listener.bind(agent.address(self._folder, _SOCKET))
            os.chmod(_SOCKET, 0o600 if process.is_ours else 0o666, dir_fd=self._folder)
            self._listener.listen(8)
        except BaseException:
            self.close()
            raise

    def starter(self, afterwards: str = "") -> str:
        """A few lines that start a thread for the payload; *afterwards* runs in it when all is done."""
        code = _CODE.format(path=os.path.join(self.path, _PAYLOAD)) + afterwards
        return _STARTER.format(pid=self._pid_inside, code=code)

    def script(self) -> str:
        """The starter as a file, for ways that run one. It stays when the visit is called off, empty:
        Python complains aloud, on the target's standard error, where it is missing."""
        self._script = self._write(_SCRIPT, self.starter(), 0o644)
        return os.path.join(self.path, _SCRIPT)

    def __enter__(self) -> ScriptDrop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        never_ran = self._connection is None
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        left = _SCRIPT if self._script is not None and never_ran else None
        if self._script is not None:
            os.ftruncate(self._script, 0)
            os.close(self._script)
        _remove(self.path, self._folder, left)
        os.close(self._folder)

    def answer(self, pidfd: int) -> bytes:
        """Wait for the answer; raises why there is none, and then there never will be one."""
        if not self.wait(pidfd, self._until):
            raise self.silence()
        assert self._connection is not None
        connection = self._connection
        connection.setblocking(False)
        parts: list[bytes] = []
        nbytes = 0
        while True:
            try:
                part = connection.recv(1 << 20)
            except BlockingIOError:
                if not self._ready(connection.fileno(), pidfd, self._until):
                    raise self._unfinished() from None
                continue
            except OSError as error:
                raise self._cut_short(pidfd) from error
            nbytes += len(part)
            if not part:
                raise self._cut_short(pidfd)
            if nbytes > LONGEST_ANSWER:
                raise NotReachable(f"pid {self._pid} answers more than {LONGEST_ANSWER >> 20} MiB")
            if time.monotonic() > self._until:
                raise self._unfinished()
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts)

    def wait(self, pidfd: int, until: float) -> bool:
        """Whether the very process that was meant has asked, and was told to go. Raises where it ended."""
        while self._connection is None:
            if not self._ready(self._listener.fileno(), pidfd, until):
                if _has_ended(pidfd):
                    raise NoSuchProcess(f"process {self._pid} has ended meanwhile")
                return False
            connection, _ = self._listener.accept()
            if agent.peer(connection)[0] != self._pid:
                connection.close()
                continue
            try:
                connection.sendall(delivery.GO)
            except OSError:  # it gave up at the same moment
                connection.close()
                continue
            self._connection = connection
            self._listener.close()  # whoever asks now comes a second time
        return True

    def call_off(self) -> None:
        """From now on nobody is told to go."""
        self._listener.close()

    def _ready(self, descriptor: int, pidfd: int, until: float) -> bool:
        """Whether there is something to read before time is up, or the process has ended."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        return descriptor in dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))

    def silence(self) -> Refused:
        return TimedOut(
            f"pid {self._pid} did not come to a safe point in time; nothing was done",
            hint="its main thread is blocked or busy outside Python; give it longer with --deadline",
        )

    def _cut_short(self, pidfd: int) -> Refused:
        # A process that ends closes its files a moment before it is seen to have ended.
        if _has_ended(pidfd, _ENDING_S):
            return NoSuchProcess(f"process {self._pid} has ended meanwhile")
        return NotReachable(f"pid {self._pid} hung up in the middle of its answer")

    def _unfinished(self) -> TimedOut:
        return TimedOut(f"pid {self._pid} began, and had not finished in time; it goes on by itself")

    def _write(self, name: str, text: str, mode: int) -> int:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=self._folder)
        os.fchmod(file, mode)
        with os.fdopen(os.dup(file), "w", encoding="utf-8") as stream:
            stream.write(text)
        return file


def _has_ended(pidfd: int, patience_s: float = 0.0) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(patience_s * 1000))


def _make_folder(process: PythonProcess) -> str:
    # Root's own folders are closed to the target. What lies in /run only root can rename.
    path = agent.folders()[0] if process.is_ours else "/run"
    prefix = "visit-" if process.is_ours else "vram-visit-"
    try:
        if process.is_ours:
            os.close(agent.open_folder(path, make=True))
        _sweep(path, prefix)
        named = f"{prefix}{process.pid}-{process.target.process.started_at}-"
        import tempfile

        return tempfile.mkdtemp(prefix=named, dir=path)
    except OSError as error:
        raise NotReachable(
            f"there is no private folder to leave a script in: {path}: {error.strerror}",
            hint="make it a folder of yours alone (mode 0700), or set XDG_RUNTIME_DIR",
        ) from error


def _sweep(path: str, prefix: str) -> None:
    """Remove what was left for processes that have ended since, and what killed visitors left."""
    for name in os.listdir(path):
        pid, _, rest = name.removeprefix(prefix).partition("-")
        if not name.startswith(prefix) or not pid.isdigit():
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
    """Whether nobody listens there any more. A script that a process means to run stays."""
    if time.time() - os.fstat(folder).st_mtime < _ABANDONED_S or _SCRIPT in os.listdir(folder):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as question:
        question.setblocking(False)
        try:
            question.connect(agent.address(folder, _SOCKET))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
    return False


def _open_folder(path: str) -> int:
    """A folder that is ours; whatever else has its name is left alone."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    about = os.fstat(folder)
    if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o022:
        os.close(folder)
        raise PermissionError(1, "others can change what lies there", path)
    return folder


def _remove(path: str, folder: int, left: str | None = None) -> None:
    """Remove the files that a visit makes, by name, and the folder: nothing below it is walked."""
    for name in _NAMES:
        if name != left:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)
    if left is None:
        with suppress(OSError):
            os.rmdir(path)


def _number(text: str) -> int | None:
    digits = text.partition("-")[0]
    return int(digits) if digits.isdigit() else None

"""A private folder for one visit: the script to run, the claim that permits it, the pipe for its answer.

Ways that only make a process run a file cannot tell what becomes of it. So the script takes
its claim away first: whoever removes that file decides, once, whether it runs or is called
off. The answer comes through a named pipe, so waiting costs nothing.
"""

from __future__ import annotations

import os
import select
import shutil
import tempfile
import time
from types import TracebackType
from typing import Any

import msgspec

from vram.errors import NoSuchProcess, NotReachable, Refused, TimedOut
from vram.host.local.procfs import started_at
from vram.model.trimming import Trimmed, Verb
from vram.payloads import agent
from vram.reach import luggage
from vram.reach.python_process import PythonProcess

_SCRIPT = """\
try:
    {expression}
except Exception:
    pass
"""


def request(verb: Verb, pid: int, until: float, *, tracebacks: bool) -> dict[str, Any]:
    return {"verb": verb, "pid": pid, "until": until, "tracebacks": tracebacks}


class Errand:
    """Made for one process and one visit; closed, nothing of it is left and nothing of it can run."""

    def __init__(self, wanted: dict[str, Any], process: PythonProcess) -> None:
        self._pid = process.pid
        self._called_off = self._expected = False
        self.folder = _make_folder(process)
        self.script = os.path.join(self.folder, "script.py")
        self._claim = os.path.join(self.folder, "claim")
        answers = os.path.join(self.folder, "answers")
        try:
            os.mkfifo(answers, 0o600)
            # For reading and writing: so it never ends, whoever opens and closes the other side.
            self._answers = os.open(answers, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            _write(self._claim, "")
            whole = {**wanted, "claim": self._claim, "answers": answers}
            _write(self.script, _SCRIPT.format(expression=luggage.expression("deliver", whole)))
            if not process.is_ours:
                for path in (self._claim, self.script, answers, self.folder):
                    os.chown(path, process.target.uid, process.gid, follow_symlinks=False)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def __enter__(self) -> Errand:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        never_ran = self.call_off() or self._called_off
        os.close(self._answers)
        if never_ran and self._expected:
            # Python complains aloud, on the target's standard error, where the file is missing.
            # Empty, it stays as long as the target does.
            os.truncate(self.script, 0)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def expect(self) -> None:
        """From now on the target means to run the script, whenever it can."""
        self._expected = True

    def call_off(self) -> bool:
        """Whether it had not begun, and now never will."""
        try:
            os.unlink(self._claim)
        except OSError:
            return False
        self._called_off = True
        return True

    def answer(self, until: float, pidfd: int) -> Trimmed:
        """Wait for the answer; raises why there is none, and then there never will be one."""
        poll = select.poll()
        for descriptor in (self._answers, pidfd):
            poll.register(descriptor, select.POLLIN)
        heard = b""
        while not heard.endswith(b"\n"):
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._answers not in ready:
                raise self._silence(ended=pidfd in ready)
            heard += os.read(self._answers, 1 << 16)
        return msgspec.json.decode(heard, type=Trimmed)

    def _silence(self, *, ended: bool) -> Refused:
        if ended:
            return NoSuchProcess(f"process {self._pid} has ended meanwhile")
        if self.call_off():
            return TimedOut(
                f"pid {self._pid} did not come to a safe point in time; nothing was done",
                hint="its main thread is blocked or busy outside Python; give it longer with --deadline",
            )
        return TimedOut(f"pid {self._pid} began to trim, and had not finished in time; it goes on by itself")


def _make_folder(process: PythonProcess) -> str:
    # Root's own folders are closed to the target. What lies in /run only root can rename.
    path = agent.folders()[0] if process.is_ours else "/run"
    prefix = "visit-" if process.is_ours else "vram-visit-"
    try:
        if process.is_ours:
            os.close(agent.open_folder(path, make=True))
        _sweep(path, prefix)
        named = f"{prefix}{process.pid}-{process.target.process.started_at}-"
        return tempfile.mkdtemp(prefix=named, dir=path)
    except OSError as error:
        raise NotReachable(
            f"there is no private folder to leave a script in: {path}: {error.strerror}",
            hint="make it a folder of yours alone (mode 0700), or set XDG_RUNTIME_DIR",
        ) from error


def _sweep(path: str, prefix: str) -> None:
    """Remove what was left for processes that have ended since."""
    for name in os.listdir(path):
        pid, _, rest = name.removeprefix(prefix).partition("-")
        if name.startswith(prefix) and pid.isdigit() and started_at(int(pid)) != _number(rest):
            shutil.rmtree(os.path.join(path, name), ignore_errors=True)


def _number(text: str) -> int | None:
    digits = text.partition("-")[0]
    return int(digits) if digits.isdigit() else None


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(text)

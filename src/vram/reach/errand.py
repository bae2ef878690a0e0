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

from vram.errors import NotReachable
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
        self.call_off()
        os.close(self._answers)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call_off(self) -> bool:
        """Whether it had not begun, and now never will."""
        try:
            os.unlink(self._claim)
        except OSError:
            return False
        return True

    def wait(self, until: float, *others: int) -> Trimmed | None:
        """The answer; None when *until* has passed or one of the descriptors *others* speaks first."""
        poll = select.poll()
        for descriptor in (self._answers, *others):
            poll.register(descriptor, select.POLLIN)
        heard = b""
        while not heard.endswith(b"\n"):
            ready = dict(poll.poll(max(0.0, until - time.monotonic()) * 1000))
            if self._answers not in ready:
                return None
            heard += os.read(self._answers, 1 << 16)
        return msgspec.json.decode(heard, type=Trimmed)


def _make_folder(process: PythonProcess) -> str:
    if not process.is_ours:
        # Root's own folders are closed to the target. What lies in /run only root can rename.
        return tempfile.mkdtemp(prefix="vram-visit-", dir="/run")
    path = agent.folders()[0]
    try:
        os.close(agent.open_folder(path, make=True))
        return tempfile.mkdtemp(prefix="visit-", dir=path)
    except OSError as error:
        raise NotReachable(
            f"there is no private folder to leave a script in: {path}: {error.strerror}",
            hint="make it a folder of yours alone (mode 0700), or set XDG_RUNTIME_DIR",
        ) from error


def _write(path: str, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as stream:
        stream.write(text)

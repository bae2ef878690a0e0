"""Starts workers and listens to them: as which user, with which environment, for how long, for how much.

A worker of another user starts as root and becomes that user (``become.py``), who may then stop or kill it,
and cannot trace it. It inherits nothing but its request and a pipe, and nothing of its process group outlives
it; what it answers is bounded, and proves nothing to another user.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence

import msgspec

from vram import untrusted
from vram.children import ChildProgram, LineInbox, start_program
from vram.errors import ExitCode, NotPermitted, TimedOut, VramError
from vram.serve.socket.become import RunAs
from vram.serve.socket.protocol import WorkerError
from vram.serve.socket.worker import MAX_ANSWER, WorkerAnswer, WorkerRequest

# From SIGTERM, on which a worker brings back what it was moving, to SIGKILL.
GRACE_S = 20.0
_MAX_ITEMS = 200_000
_PASSED_ON = ("LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "VRAM_VIRTUAL_GPU")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def own_rights() -> RunAs:
    return RunAs(os.geteuid(), os.getegid(), tuple(os.getgroups()))


class WorkerProcess:
    """One worker from its start to its end. Iterate over :meth:`answers`, then :meth:`close` it."""

    def __init__(
        self,
        request: WorkerRequest,
        run_as: RunAs,
        deadline_s: float,
        lock: int | None = None,
        *,
        command: Sequence[str] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """Start it; *lock* is a descriptor that a worker of our own user keeps open while it lives.

        *command* is another program in its place: for another user's rights, one that gives its last argument
        to :func:`become`. *grace_s* is how long it has from SIGTERM to SIGKILL.

        Raises OSError where no process can be started.
        """
        foreign = run_as.uid != os.geteuid()
        assert not (foreign and lock is not None), "another user could keep it for good"
        self._loop = asyncio.get_running_loop()
        self._inbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._lines = LineInbox(MAX_ANSWER)
        self._total = 0
        self._grace_s = grace_s
        words = [*(command or _worker_command())]
        if foreign:
            words.append(msgspec.json.encode(run_as).decode())
        self._process = _start(words, request, lock)
        self._is_reading = True
        self._loop.add_reader(self._process.pipe, self._read)
        self._loop.add_reader(self._process.pidfd, self._on_exit)
        self.has_ended = asyncio.Event()
        self._timer = self._loop.call_later(deadline_s, self.end)
        self._kill_timer: asyncio.TimerHandle | None = None
        self.was_late = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self, *, late: bool = True) -> None:
        """Have it end: by SIGTERM, which lets it clean up, and after a while by SIGKILL."""
        self.was_late = self.was_late or late
        if not self.has_ended.is_set() and self._kill_timer is None:
            self._process.send(signal.SIGTERM)
            self._process.send(signal.SIGCONT)
            self._kill_timer = self._loop.call_later(self._grace_s, self._process.send, signal.SIGKILL)

    async def answers(self) -> AsyncIterator[WorkerAnswer]:
        """Its lines as they come, ending with the last one; one is made where it has left none."""
        while (line := await self._inbox.get()) is not None:
            answer = _decode(line)
            yield answer
            if answer.is_last:
                return
        await self.has_ended.wait()
        yield self._end_without_answer()

    async def last(self) -> WorkerAnswer:
        """Only its last line."""
        return [answer async for answer in self.answers()][-1]

    async def close(self) -> None:
        """Wait until it has ended, and forget it. Does not end it."""
        await self.has_ended.wait()

    def _read(self) -> None:
        try:
            part = os.read(self._process.pipe, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._total += len(part)
        if not part or self._total > MAX_ANSWER:
            self._stop_reading()
            return
        for line in self._lines.add(part):
            self._inbox.put_nowait(line)

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._process.pipe)
            self._process.hang_up()
            self._inbox.put_nowait(None)

    def _on_exit(self) -> None:
        # What it wrote last is read first; a child of its own may have the pipe open, and is not waited for.
        while self._is_reading:
            before = self._total
            self._read()
            if self._total == before:
                self._stop_reading()
        self._loop.remove_reader(self._process.pidfd)
        # Not yet reaped, so the number is its own, and the group holds what it started and no other process.
        self._process.end_group(0.0)
        self._timer.cancel()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self.has_ended.set()

    def _end_without_answer(self) -> WorkerAnswer:
        if self.was_late:
            return failed(TimedOut("it took too long and was ended", hint="try again later"))
        code = self._process.exit_code or 0
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        return _lost(f"the worker {how} and left no answer")


def start_worker(
    order: WorkerRequest, run_as: RunAs, limit_s: float, lock: int | None = None
) -> WorkerProcess:
    """Start a worker; raises NotPermitted where that user cannot run one."""
    try:
        return WorkerProcess(order, run_as, limit_s, lock)
    except OSError as error:
        raise NotPermitted(
            f"no worker can be started as uid {run_as.uid}: {error.strerror or error}",
            hint="that user must be able to run this Python; a package installs it where everybody can",
        ) from error


def failed(error: VramError) -> WorkerAnswer:
    """*error* as a worker would have answered it."""
    name, message = type(error).__name__, str(error)
    answer = WorkerError(name=name, message=message, hint=error.hint, exit_code=error.exit_code)
    return WorkerAnswer(is_last=True, error=answer)


def _decode(line: bytes) -> WorkerAnswer:
    try:
        return untrusted.decode(line, WorkerAnswer, most_items=_MAX_ITEMS)
    except untrusted.Rejected as error:
        return _lost(f"the worker's answer is not usable: {error.code}")


def _lost(message: str) -> WorkerAnswer:
    error = WorkerError(name="WorkerLost", message=message, exit_code=ExitCode.PARTIAL)
    return WorkerAnswer(is_last=True, error=error)


def _worker_command() -> list[str]:
    """Isolated (-I): no module comes from a user's home or from the environment."""
    files = (untrusted.__file__, msgspec.__file__)
    roots = [os.path.dirname(os.path.dirname(os.path.abspath(each))) for each in files]
    code = f"import sys; sys.path += {roots!r}; from vram.serve.socket.worker import main; main()"
    return [sys.executable, "-I", "-c", code]


def _start(command: Sequence[str], request: WorkerRequest, lock: int | None) -> ChildProgram:
    # A file in memory takes the whole request at once: its reader need not be waited for.
    text = os.memfd_create("vram-request", os.MFD_CLOEXEC)
    try:
        os.write(text, msgspec.json.encode(request))
        os.lseek(text, 0, os.SEEK_SET)
        return start_program(
            command,
            stdin=text,
            stderr=subprocess.DEVNULL,
            env=clean_environment(),
            cwd="/",
            umask=0o077,
            pass_fds=() if lock is None else (lock,),
        )
    finally:
        os.close(text)


def clean_environment() -> dict[str, str]:
    """What a worker is started with. Where its home is, it asks the system by its uid."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {"PATH": _PATH, **kept}

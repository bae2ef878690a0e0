"""Plays a scene on a virtual GPU: real processes that act out one situation, stage by stage."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from vram.errors import VirtualGpuError

PROGRAMS = Path(__file__).with_name("scenes")
LEAVE_S = 10.0


class Place(Protocol):
    """Where a scene can be played: a virtual GPU, or a machine that has a real one."""

    def popen(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]: ...


class Scene:
    """One program of ``scenes/`` while it plays.

    ``pids`` names its processes by the part they play. All of them are held by pidfd from
    the moment they are named, so signals reach nobody else and nobody is left behind.
    """

    def __init__(self, place: Place, program: str, *arguments: object) -> None:
        self._process = place.popen(
            # As typed by a person in that folder: reports show this line, not where Python lies.
            ["python", f"{program}.py", *map(str, arguments)],
            executable=sys.executable,
            # Under a name without a path, Python would look for its library beside another one.
            env={**os.environ, "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}"},
            cwd=PROGRAMS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C at the terminal is ours to handle, in our order.
            start_new_session=True,
        )
        self._pidfds = {self._process.pid: os.pidfd_open(self._process.pid)}
        self._line: dict[str, Any] = {}
        try:
            self._hear()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def stage(self) -> str:
        return str(self._line["stage"])

    @property
    def pids(self) -> dict[str, int]:
        return dict(self._line["pids"])

    @property
    def nbytes(self) -> int:
        """How many bytes of device memory this stage is about."""
        return int(self._line["nbytes"])

    def go(self) -> None:
        """Send the scene to its next stage, and wait until that is set."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        self._hear()

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End whoever plays *part* by a signal, and wait until that process is gone."""
        pid = self.pids[part]
        signal.pidfd_send_signal(self._pidfds[pid], number)
        if pid == self._process.pid:
            self._process.wait()
        else:
            _gone(self._pidfds[pid])

    def close(self) -> None:
        """End the scene: everybody gets the chance to leave, then is made to."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        for pidfd in self._pidfds.values():
            if not _gone(pidfd):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                _gone(pidfd)
            os.close(pidfd)
        self._pidfds.clear()
        self._process.wait()
        self._process.stdout.close()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        line = json.loads(self._process.stdout.readline() or b'{"ready": false, "error": "it ended early"}')
        if not line["ready"]:
            raise VirtualGpuError(f"a scene could not be played: {line['error']}")
        self._line = line
        for pid in set(self.pids.values()) - set(self._pidfds):
            self._pidfds[pid] = os.pidfd_open(pid)


def _gone(pidfd: int) -> bool:
    """Wait until a process has ended; its files are closed by then, reaped or not."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(LEAVE_S * 1000))

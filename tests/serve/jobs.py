"""A job of spawned workers on a virtual GPU, whose launcher a test kills; all of it ends with its test."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.patience import has_ended, until, until_ended
from vram.payloads.procfs import read_stat
from vram.virtualgpu import VirtualGpu
from vram.virtualgpu.demos import PROGRAMS

SPAWNER = Path(__file__).with_name("spawner.py")


class SpawnedJob:
    """Workers that hold so many MiB each, in a process group of their own."""

    def __init__(self, gpu: VirtualGpu, stack: ExitStack, *mib: int) -> None:
        self._launcher = gpu.popen(
            [sys.executable, str(SPAWNER), *map(str, mib)],
            env={**os.environ, "PROGRAMS": str(PROGRAMS)},
            stdout=-1,
            text=True,
            start_new_session=True,
        )
        stack.callback(self.close)
        self.pidfds: list[int] = []
        self.pids: list[int] = json.loads(self._launcher.stdout.readline())
        self.pidfds = [os.pidfd_open(pid) for pid in self.pids]

    def orphan(self) -> None:
        """Kill the launcher; its workers have another parent when this returns."""
        launcher = self._launcher.pid
        self._launcher.kill()
        until(lambda: all(stat.parent != launcher for pid in self.pids if (stat := read_stat(pid))))
        self._launcher.wait()

    def send(self, at: int, number: signal.Signals) -> None:
        signal.pidfd_send_signal(self.pidfds[at], number)

    def end(self, at: int) -> None:
        self.send(at, signal.SIGKILL)
        until_ended(self.pidfds[at])

    @property
    def identities(self) -> list[tuple[int, int]]:
        stats = {pid: read_stat(pid) for pid in self.pids}
        return [(pid, stat.started_at) for pid, stat in stats.items() if stat is not None]

    @property
    def living(self) -> list[int]:
        return [pid for pid, pidfd in zip(self.pids, self.pidfds, strict=True) if not has_ended(pidfd)]

    def until_ended(self) -> None:
        for pidfd in self.pidfds:
            until_ended(pidfd)

    def close(self) -> None:
        self._launcher.kill()
        self._launcher.wait()
        self._launcher.stdout.close()
        for pidfd in self.pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            until_ended(pidfd)
            os.close(pidfd)
        self.pidfds = []

"""Processes opened by pidfd: a signal reaches the process that was checked, or none."""

from __future__ import annotations

import os
import select
import signal
from types import TracebackType

from vram.host.ports import Sent


class LocalPidHandle:
    """One process while the descriptor is open: its pid may be reused meanwhile, this never is."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self.pidfd = pidfd

    def __enter__(self) -> LocalPidHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def pid_in_proc(self) -> int | None:
        """The pid under which /proc shows this process now; None once it is gone, or not shown there.

        The kernel writes this line for the PID namespace that /proc was mounted in. Where
        that is another one than ours, a pid read from /proc names somebody else for us.
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
        try:
            signal.pidfd_send_signal(self.pidfd, number)
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


class LocalSignals:
    """Opens pid handles, and knows which processes run us."""

    def __init__(self, proc_root: str = "/proc") -> None:
        self._root = proc_root

    def open(self, pid: int) -> LocalPidHandle | None:
        if pid <= 0:
            return None
        try:
            return LocalPidHandle(pid, os.pidfd_open(pid))
        except OSError:  # gone, or a thread that leads no process
            return None

    def self_and_ancestors(self) -> frozenset[int]:
        """Our own pid and those of all our ancestors, as far as /proc shows them."""
        from vram.payloads.procfs import ProcessFolder

        found, pid = [os.getpid()], os.getppid()
        while pid > 0 and pid not in found:
            found.append(pid)
            try:
                with ProcessFolder(self._root, pid) as folder:
                    stat = folder.stat()
            except OSError:
                break
            pid = stat.parent if stat else 0
        return frozenset(found)

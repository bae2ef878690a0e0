"""What systemd is told: ready, reloading, stopping, alive; and the lines of its journal."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from contextlib import suppress

from vram.report.escape import inert

_MAX_LENGTH = 2000
_PIPE_BUF = 4096  # so much goes into a pipe that poll() calls writable


class SystemdNotifier:
    """Sends the messages of sd_notify(3) to the socket that NOTIFY_SOCKET names."""

    def __init__(self) -> None:
        # Taken out of the environment: what we start must not speak for us.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self.watchdog_s = _watchdog_s()

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        # A service of Type=notify-reload must say when, by the monotonic clock.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.sendto(message.encode(errors="replace"), address)


def _watchdog_s() -> float | None:
    """How often systemd wants a sign of life, halved as it recommends; None where it does not ask us."""
    text, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    if not text.isdecimal() or int(text) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(text) / 2_000_000


class ServiceLog:
    """A line on standard error for each event; foreign text in it is inert. It never waits for its reader."""

    def __init__(self) -> None:
        self._is_journal = _is_journal()

    def error(self, sentence: str) -> None:
        self._write(3, sentence)

    def info(self, sentence: str) -> None:
        self._write(6, sentence)

    def _write(self, level: int, sentence: str) -> None:
        mark = f"<{level}>" if self._is_journal else "vram serve: "
        line = f"{mark}{inert(sentence)[:_MAX_LENGTH]}\n".encode(errors="backslashreplace")
        with suppress(OSError, AttributeError, ValueError):
            number = sys.stderr.fileno()
            # A pipe that is full would stop the service: its line is lost instead.
            if select.select((), (number,), (), 0.0)[1]:
                os.write(number, line[:_PIPE_BUF])


def _is_journal() -> bool:
    """Whether standard error leads to the journal, which then reads the level at the beginning of a line."""
    with suppress(OSError, AttributeError, ValueError):
        about = os.fstat(sys.stderr.fileno())
        return os.environ.get("JOURNAL_STREAM") == f"{about.st_dev}:{about.st_ino}"
    return False

"""What systemd is told: ready, reloading, stopping, still alive. Without systemd nothing happens."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


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

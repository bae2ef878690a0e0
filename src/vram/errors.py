"""One exception tree. Every error says what happened, and hints at what to do next.

VramError
├── UsageError          the words of the call are wrong            exit 2
├── DriverMissing       no NVIDIA driver answers on this host      exit 4
├── DeviceError         the driver answered with an error          exit 3
├── BadSnapshot         a snapshot file cannot be read or judged   exit 5
└── VirtualGpuError     the virtual GPU cannot be made or entered  exit 6
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a script reads from ``$?``. One meaning per number in every command."""

    OK = 0
    HELD = 1
    USAGE = 2
    PARTIAL = 3
    NO_DRIVER = 4
    BAD_INPUT = 5
    VIRTUAL_GPU = 6
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class VramError(Exception):
    """Something a user can understand went wrong."""

    exit_code = ExitCode.PARTIAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(VramError):
    """The words of the call are wrong; nothing was done."""

    exit_code = ExitCode.USAGE


class DriverMissing(VramError):
    """No NVIDIA driver answers on this host."""

    exit_code = ExitCode.NO_DRIVER


class DeviceError(VramError):
    """The driver answered with an error."""


class BadSnapshot(VramError):
    """A snapshot file is broken, foreign or newer than this program."""

    exit_code = ExitCode.BAD_INPUT


class VirtualGpuError(VramError):
    """The virtual GPU cannot be made or entered."""

    exit_code = ExitCode.VIRTUAL_GPU

"""NVML, NVIDIA's management library, by ctypes: the one place that loads it without nvidia-ml-py.

It reads what a GPU has free and who is charged for what, without a context and without libcuda.
Any of its calls may hang in the driver: a caller that cannot afford that makes them in a thread or a process.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p

from .libcuda import WSL_FOLDER, open_library

NAME = "libnvidia-ml.so.1"

_VERSION_2 = 0x02000000
_NOT_AVAILABLE = 2**64 - 1
_INSUFFICIENT_SIZE = 7
# Uninitialized, driver not loaded, another version: what was opened is worth
# nothing any more, and a caller that opens it anew may find a driver that works.
_GONE = (1, 9, 18)
_FIRST_GUESS = 64  # processes on one GPU; the call tells when there are more


class MemoryInfo(ctypes.Structure):
    """Version 2 of nvmlMemory_t, in which what the driver reserves is not called used."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (("pid", c_uint), ("nbytes", c_ulonglong), ("instance", c_uint), ("compute", c_uint))


# ctypes makes a class for every length: made on each call, they are garbage for the collector.
_ROOM = ProcessInfo * _FIRST_GUESS


def load(folder: str = WSL_FOLDER) -> ctypes.CDLL:
    """The library; raises OSError where it is not installed."""
    return open_library(NAME, ctypes.CDLL, folder)


class Nvml:
    """The library, initialised. A forked child makes its own: its parent's state is not its own."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.pid = os.getpid()
        self.gone = False
        """Whether an answer meant that the driver was unloaded or replaced: close this one, start another."""
        self._handles: dict[str, c_void_p] = {}

    @classmethod
    def start(cls) -> Nvml | None:
        """None where no driver answers."""
        try:
            library = load()
            return None if library.nvmlInit_v2() else cls(library)
        except (OSError, AttributeError):
            return None

    def close(self) -> None:
        self._library.nvmlShutdown()

    def handle(self, name: str) -> c_void_p | None:
        """The GPU that *name* means: a UUID, or a number in the driver's own order."""
        if name not in self._handles:
            found = c_void_p()
            if name.isdecimal():
                failed = self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(name)), byref(found))
            else:
                failed = self._call("nvmlDeviceGetHandleByUUID", c_char_p(name.encode()), byref(found))
            if failed:
                return None
            self._handles[name] = found
        return self._handles[name]

    def _call(self, function: str, *arguments: object) -> int:
        """The library's code, 0 for success; remembers where it means that the driver has left."""
        code: int = getattr(self._library, function)(*arguments)
        self.gone = self.gone or code in _GONE
        return code

    def call(self, function: str, *arguments: object) -> int:
        """Any of its functions; raises AttributeError where the library has no such."""
        return self._call(function, *arguments)

    def count(self) -> int:
        number = c_uint()
        return 0 if self._call("nvmlDeviceGetCount_v2", byref(number)) else number.value

    def memory(self, handle: c_void_p) -> MemoryInfo | None:
        info = MemoryInfo(version=ctypes.sizeof(MemoryInfo) | _VERSION_2)
        return None if self._call("nvmlDeviceGetMemoryInfo_v2", handle, byref(info)) else info

    def charged_to(self, pid: int, handle: c_void_p) -> int | None:
        """Bytes that the driver charges to *pid*; None where it does not list it or does not tell.

        Drivers before about 560 list the host's pids inside a container: ours is then not found.
        """
        mine = [each.nbytes for each in self._processes(handle) if each.pid == pid]
        known = [int(nbytes) for nbytes in mine if nbytes != _NOT_AVAILABLE]
        return sum(known) if mine and len(known) == len(mine) else None

    def _processes(self, handle: c_void_p) -> list[ProcessInfo]:
        room = _FIRST_GUESS
        while room <= 2**16:
            count, found = c_uint(room), (_ROOM if room == _FIRST_GUESS else ProcessInfo * room)()
            code = self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), found)
            if code != _INSUFFICIENT_SIZE:
                return [] if code else found[: count.value]
            room = count.value + _FIRST_GUESS
        return []

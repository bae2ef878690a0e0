"""NVML in this process, by ctypes: what a GPU has free and what is charged to this pid."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p

from vram.payloads.driver_library import load

VERSION_2 = 0x02000000
NOT_AVAILABLE = 2**64 - 1
INSUFFICIENT_SIZE = 7
# Uninitialized, driver not loaded, another version: what was initialised is no longer valid, and
# initialising again may find a driver that works.
GONE = (1, 9, 18)
FIRST_GUESS = 64  # processes on one GPU; the call says if there are more


class _Memory(ctypes.Structure):
    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Process(ctypes.Structure):
    _fields_ = (("pid", c_uint), ("nbytes", c_ulonglong), ("instance", c_uint), ("compute", c_uint))


# ctypes makes a class for every length: made on each call, they would be garbage to collect.
_ROOM = _Process * FIRST_GUESS


class ProcessNvml:
    """One initialised library. A forked child makes its own: it cannot use its parent's state."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self.pid = os.getpid()
        self.gone = False
        self._handles: dict[str, c_void_p] = {}

    @classmethod
    def start(cls) -> ProcessNvml | None:
        """None if there is no driver."""
        try:
            library = load("libnvidia-ml.so.1")
            return None if library.nvmlInit_v2() else cls(library)
        except (OSError, AttributeError):
            return None

    def handle(self, name: str) -> c_void_p | None:
        """The GPU that *name* means: a UUID, or a number in the driver's own order."""
        if name not in self._handles:
            found = self._find(name)
            if found is None:
                return None
            self._handles[name] = found
        return self._handles[name]

    def _find(self, name: str) -> c_void_p | None:
        found = c_void_p()
        if name.isdecimal():
            failed = self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(int(name)), byref(found))
        else:
            failed = self._call("nvmlDeviceGetHandleByUUID", c_char_p(name.encode()), byref(found))
        return None if failed else found

    def _call(self, function: str, *arguments: object) -> int:
        """Make a call; set ``gone`` if its code means that the driver was unloaded."""
        answer: int = getattr(self._library, function)(*arguments)
        self.gone = self.gone or answer in GONE
        return answer

    def end(self) -> None:
        """Shut the library down, as far as it is still initialised."""
        self._library.nvmlShutdown()

    def count(self) -> int:
        number = c_uint()
        return 0 if self._call("nvmlDeviceGetCount_v2", byref(number)) else number.value

    def free_and_total(self, handle: c_void_p) -> tuple[int, int] | None:
        memory = _Memory(version=ctypes.sizeof(_Memory) | VERSION_2)
        if self._call("nvmlDeviceGetMemoryInfo_v2", handle, byref(memory)):
            return None
        return int(memory.free), int(memory.total)

    def charged_to(self, pid: int, handle: c_void_p) -> int | None:
        """Bytes that the driver charges to *pid*; None if it lists no figure for it.

        Drivers before about 560 list the host's pids inside a container: ours is then not found.
        """
        mine = [each.nbytes for each in self._processes(handle) if each.pid == pid]
        known = [int(nbytes) for nbytes in mine if nbytes != NOT_AVAILABLE]
        return sum(known) if mine and len(known) == len(mine) else None

    def _processes(self, handle: c_void_p) -> list[_Process]:
        room = FIRST_GUESS
        while room <= 2**16:
            count, found = c_uint(room), (_ROOM if room == FIRST_GUESS else _Process * room)()
            answer = self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), found)
            if answer != INSUFFICIENT_SIZE:
                return [] if answer else found[: count.value]
            room = count.value + FIRST_GUESS
        return []


_started: ProcessNvml | None = None


def nvml() -> ProcessNvml | None:
    """The library, initialised by the first call of this process, and again after the driver was gone."""
    global _started
    if _started is not None and _started.gone:
        _started.end()
        _started = None
    if _started is None or _started.pid != os.getpid():
        _started = ProcessNvml.start()
    return _started


def visible_names(count: int) -> list[str]:
    """NVML's names of the GPUs that CUDA numbers 0, 1, …, by the environment."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(count)]
    names: list[str] = []
    for word in chosen.split(","):
        name = word.strip()
        # CUDA stops at the first word that it cannot read, and so do we.
        if not (name.isdecimal() and int(name) < count) and not name.startswith(("GPU-", "MIG-")):
            break
        names.append(name)
    return names

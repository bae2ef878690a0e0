"""How much of a GPU is used and free, by ctypes on NVML: cheap enough to be read ten times a second.

NVML may never answer. It is called in threads that nobody waits for longer than ``ANSWER_S``; while
one of them hangs, no GPU answers.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable
from typing import Any

from vram.payloads.driver_library import load

VERSION_2 = 0x02000000
ANSWER_S = 5.0
# Uninitialized, driver not loaded, another version: it has to be opened anew.
GONE = (1, 9, 18)


class Memory(ctypes.Structure):
    """Version 2 of the reading, in which what the driver reserves is not called used."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Gauge:
    """Readings by UUID; a GPU that does not answer is left out. The library is loaded at once, and anew
    where its driver left meanwhile."""

    def __init__(self) -> None:
        self._nvml: ctypes.CDLL | None = None
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._latest = threading.Thread(target=self._open, daemon=True)
        self._latest.start()

    def _open(self) -> None:
        self._handles = {}
        try:
            library = load("libnvidia-ml.so.1")
            if not library.nvmlInit_v2():
                self._nvml = library
        except (OSError, AttributeError):
            return  # no GPU answers

    def used(self, uuids: Iterable[str]) -> dict[str, int]:
        return {uuid: int(memory.used) for uuid, memory in self._read(uuids).items()}

    def shortage(self, room: Iterable[tuple[str, int]]) -> dict[str, int]:
        """How many bytes each GPU has too few for *room*; one that does not answer has none."""
        wanted: dict[str, int] = {}
        for uuid, nbytes in room:
            wanted[uuid] = wanted.get(uuid, 0) + nbytes
        read = self._read(wanted)
        free = {uuid: int(read[uuid].free) if uuid in read else 0 for uuid in wanted}
        return {uuid: wanted[uuid] - free[uuid] for uuid in wanted if free[uuid] < wanted[uuid]}

    def _read(self, uuids: Iterable[str]) -> dict[str, Memory]:
        self._latest.join(ANSWER_S)
        if self._latest.is_alive():
            return {}
        read: dict[str, Memory] = {}
        reading = threading.Thread(target=self._read_into, args=(read, list(uuids)), daemon=True)
        self._latest = reading
        reading.start()
        reading.join(ANSWER_S)
        return {} if reading.is_alive() else read

    def _read_into(self, read: dict[str, Memory], uuids: list[str]) -> None:
        if self._nvml is None:
            self._open()
        for uuid in uuids:
            handle = self._handle(uuid)
            memory = Memory(version=ctypes.sizeof(Memory) | VERSION_2)
            if handle and not self._ask("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory)):
                read[uuid] = memory

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        if uuid not in self._handles:
            handle = ctypes.c_void_p()
            if self._ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle)):
                return None
            self._handles[uuid] = handle
        return self._handles[uuid]

    def _ask(self, function: str, *arguments: Any) -> int:
        """Make a call; zero is its only good answer. One that says that the driver left closes it here."""
        if self._nvml is None:
            return GONE[0]
        answer: int = getattr(self._nvml, function)(*arguments)
        if answer in GONE:
            self._nvml.nvmlShutdown()
            self._nvml = None
        return answer

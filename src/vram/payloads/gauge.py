"""How much of a GPU is used and free, by ctypes on NVML: cheap enough to be read ten times a second."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

from vram.payloads.driver_library import load

VERSION_2 = 0x02000000
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
    """Readings by UUID; a GPU that does not answer is left out. A driver that left is opened anew."""

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._nvml: ctypes.CDLL | None = None
        try:
            library = load("libnvidia-ml.so.1")
            if not library.nvmlInit_v2():
                self._nvml = library
        except (OSError, AttributeError):
            return

    def used(self, uuids: Iterable[str]) -> dict[str, int]:
        read = {uuid: self._read(uuid) for uuid in uuids}
        return {uuid: int(memory.used) for uuid, memory in read.items() if memory is not None}

    def shortage(self, room: Iterable[tuple[str, int]]) -> dict[str, int]:
        """How many bytes each GPU has too few for *room*; one that does not answer has none."""
        short = {}
        for uuid, wanted in room:
            memory = self._read(uuid)
            free = 0 if memory is None else int(memory.free)
            if free < wanted:
                short[uuid] = wanted - free
        return short

    def _read(self, uuid: str) -> Memory | None:
        if self._nvml is None:
            self._open()
        handle = self._handle(uuid)
        memory = Memory(version=ctypes.sizeof(Memory) | VERSION_2)
        if handle is None or self._ask("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(memory)):
            return None
        return memory

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

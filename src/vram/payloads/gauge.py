"""How much of a GPU is used and free, by ctypes on NVML: cheap enough to be read ten times a second."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from vram.payloads.driver_library import load

VERSION_2 = 0x02000000


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
    """Readings by UUID; a GPU that does not answer is left out."""

    def __init__(self) -> None:
        self._handles: dict[str, ctypes.c_void_p] = {}
        try:
            self._nvml: ctypes.CDLL | None = load("libnvidia-ml.so.1")
            if self._nvml.nvmlInit_v2():
                self._nvml = None
        except (OSError, AttributeError):
            self._nvml = None

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
        handle = self._handle(uuid)
        if self._nvml is None or handle is None:
            return None
        memory = Memory(version=ctypes.sizeof(Memory) | VERSION_2)
        return None if self._nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) else memory

    def _handle(self, uuid: str) -> ctypes.c_void_p | None:
        if uuid not in self._handles and self._nvml is not None:
            handle = ctypes.c_void_p()
            if self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
                return None
            self._handles[uuid] = handle
        return self._handles.get(uuid)

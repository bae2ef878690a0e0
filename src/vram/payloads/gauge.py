"""How much of a GPU is used and free, by ctypes on NVML: cheap enough to be read ten times a second.

NVML may never answer. It is called in threads that nobody waits for longer than ``ANSWER_S``; while
one of them hangs, no GPU answers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from vram.payloads.libnvml import MemoryInfo, Nvml

ANSWER_S = 5.0


class Gauge:
    """Readings by UUID; a GPU that does not answer is left out. The library is loaded at once, and anew
    where its driver left meanwhile."""

    def __init__(self) -> None:
        self._nvml: Nvml | None = None
        self._latest = threading.Thread(target=self._open, daemon=True)
        self._latest.start()

    def _open(self) -> None:
        self._nvml = Nvml.start()

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

    def _read(self, uuids: Iterable[str]) -> dict[str, MemoryInfo]:
        self._latest.join(ANSWER_S)
        if self._latest.is_alive():
            return {}
        read: dict[str, MemoryInfo] = {}
        reading = threading.Thread(target=self._read_into, args=(read, list(uuids)), daemon=True)
        self._latest = reading
        reading.start()
        reading.join(ANSWER_S)
        return {} if reading.is_alive() else read

    def _read_into(self, read: dict[str, MemoryInfo], uuids: list[str]) -> None:
        if self._nvml is None:
            self._open()
        nvml = self._nvml
        if nvml is None:
            return
        for uuid in uuids:
            handle = nvml.handle(uuid)
            memory = nvml.memory(handle) if handle else None
            if memory is not None:
                read[uuid] = memory
            if nvml.gone:
                nvml.close()
                self._nvml = None
                return

"""Writes traces as native/FORMAT.md says, in Python: the format's second implementation, for tests.

    trace = TraceFile()
    process = trace.section(pid=7)
    writer = process.writer()
    stack = writer.stack(("train", "train.py", 3), ("main", "train.py", 9))   # innermost first
    gpu0 = writer.where(context=0xC0, device=0)
    writer.alloc(10, 0x7000, 1 << 20, where=gpu0, stack=stack)
    writer.free(20, 0x7000, where=gpu0)
    path.write_bytes(trace.bytes())

Times are in ns since the start of the section.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

PAGE, CHUNK, CHUNK_HEADER = 4096, 65536, 64

KINDS = {
    "device": 0,
    "managed": 1,
    "stream-ordered": 2,
    "opened": 3,
    "graph": 4,
    "imported": 5,
    "physical": 6,
    "multicast": 7,
    "pinned host": 8,
    "registered host": 9,
    "array": 10,
    "address range": 11,
    "module": 12,
    "context": 13,
    "pool": 14,
    "physical host": 15,
    "torch block": 16,
    "cupy block": 17,
    "jax buffer": 18,
    "framework block": 19,
}
SPACES = {
    0: 0,
    1: 0,
    2: 0,
    3: 0,
    4: 0,
    5: 2,
    6: 2,
    7: 2,
    8: 1,
    9: 1,
    10: 3,
    11: 4,
    12: 5,
    13: 6,
    14: 7,
    15: 2,
}
SPACES |= {16: 8, 17: 9, 18: 10, 19: 11}


def number(value: int) -> bytes:
    assert 0 <= value < 1 << 64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def signed(value: int) -> bytes:
    """Zigzag, of a difference modulo 2**64."""
    value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
    return number((value << 1 if value >= 0 else ~(value << 1)) % (1 << 64))


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return number(len(raw)) + raw


class Writer:
    """One writer of a section; its chunks in their order."""

    def __init__(self, section: Section, index: int, thread: int) -> None:
        self._section = section
        self.index = index
        self.thread = thread
        self.chunks: list[bytearray] = []
        self._time = self._address = 0
        self._wheres: dict[tuple[int, int | None, int], int] = {}
        self._places: dict[tuple[int, str | bytes, str | bytes, int], int] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._latest_ns = 0

    # ---- chunks ----

    def _open(self) -> None:
        base = self._section.started_ns + self._latest_ns
        head = struct.pack("<8sIIQI", b"VRAMCHNK", self.index, len(self.chunks), base, self.thread)
        self.chunks.append(bytearray(head.ljust(CHUNK_HEADER, b"\0")))
        self._section.order.append((self.index, len(self.chunks) - 1))
        self._time, self._address = base, 0

    def raw(self, record: bytes) -> None:
        """A record as it is; it must not depend on what was written before in the chunk."""
        if not self.chunks or len(self.chunks[-1]) + len(record) > CHUNK:
            self._open()
        self.chunks[-1] += record

    def new_chunk(self) -> None:
        self._open()

    def _event(self, kind: int, time_ns: int, *parts: bytes | tuple[str, int], before: bytes = b"") -> None:
        """``("address", value)`` is written as the difference that it is."""
        self._latest_ns = max(self._latest_ns, time_ns)
        if not self.chunks or len(self.chunks[-1]) > CHUNK - 6000:
            self._open()
        time = self._section.started_ns + time_ns
        out = bytes([kind]) + before + signed(time - self._time)
        for part in parts:
            if isinstance(part, bytes):
                out += part
            else:
                out += signed(part[1] - self._address)
                self._address = part[1]
        self._time = time
        self.chunks[-1] += out

    # ---- definitions ----

    def where(self, context: int = 0xC0, device: int | None = 0, stream: int = 0) -> int:
        key = (context, device, stream)
        if key not in self._wheres:
            known = 0 if device is None else device + 1
            self.raw(b"\x03" + number(context) + number(known) + number(stream))
            self._wheres[key] = len(self._wheres) + 1
        return self._wheres[key]

    def place(self, function: str | bytes, file: str | bytes, line: int, language: int = 0) -> int:
        key = (language, function, file, line)
        if key not in self._places:
            self.raw(bytes([4, language]) + text(function) + text(file) + number(line))
            self._places[key] = len(self._places) + 1
        return self._places[key]

    def stack(self, *frames: tuple[str | bytes, str | bytes, int], language: int = 0) -> int:
        """The number of a stack, innermost frame first."""
        node = 0
        for function, file, line in reversed(frames):
            key = (node, self.place(function, file, line, language))
            if key not in self._nodes:
                self.raw(b"\x05" + number(key[0]) + number(key[1]))
                self._nodes[key] = len(self._nodes) + 1
            node = self._nodes[key]
        return node

    def takes_over(self, thread: int, name: str = "") -> None:
        self.thread = thread
        self.raw(b"\x02" + number(thread) + text(name))

    def device(self, device: int, pci: str, name: str, nbytes: int) -> None:
        self.raw(b"\x0f" + number(device) + text(pci) + text(name) + number(nbytes))

    def blob(self, name: str, content: bytes, part_nbytes: int = 48 << 10) -> None:
        parts = [content[at : at + part_nbytes] for at in range(0, len(content), part_nbytes)] or [b""]
        for at, part in enumerate(parts):
            self.raw(b"\x0b" + text(name) + number(at) + number(len(parts)) + text(part))

    # ---- events ----

    def alloc(
        self, time_ns: int, address: int, nbytes: int, *, kind: str = "device", where: int = 0, stack: int = 0
    ) -> None:
        parts = (number(where), ("address", address), number(nbytes), number(stack))
        self._event(0x40 + KINDS[kind], time_ns, *parts)

    def free(self, time_ns: int, address: int, *, kind: str = "device", where: int = 0) -> None:
        self._event(0x60 + SPACES[KINDS[kind]], time_ns, number(where), ("address", address))

    def failed(
        self,
        time_ns: int,
        nbytes: int,
        *,
        kind: str = "device",
        result: int = 2,
        where: int = 0,
        stack: int = 0,
    ) -> None:
        parts = (number(where), number(nbytes), number(result), number(stack))
        self._event(0x01, time_ns, *parts, before=bytes([KINDS[kind]]))

    def map(self, time_ns: int, address: int, nbytes: int, handle: int, *, where: int = 0) -> None:
        self._event(0x06, time_ns, number(where), ("address", address), number(nbytes), number(handle))

    def unmap(self, time_ns: int, address: int, nbytes: int, *, where: int = 0) -> None:
        self._event(0x07, time_ns, number(where), ("address", address), number(nbytes))

    def retain(self, time_ns: int, handle: int) -> None:
        self._event(0x08, time_ns, number(handle))

    def gap(self, time_ns: int, reason: int, begins: bool) -> None:
        self._event(0x09, time_ns, before=bytes([reason, 1 if begins else 2]))

    def end(self, time_ns: int, reason: int = 1, error: int = 0, chunks: int = 0) -> None:
        self._event(0x0A, time_ns, number(error), number(chunks), before=bytes([reason]))

    def mark(self, time_ns: int, said: str | bytes) -> None:
        self._event(0x0C, time_ns, text(said))

    def before(self, time_ns: int, device: int | None, nbytes: int, source: str) -> None:
        self._event(0x0D, time_ns, number(0 if device is None else device + 1), number(nbytes), text(source))

    def trim(self, time_ns: int, pool: int, kept: int, *, where: int = 0) -> None:
        self._event(0x0E, time_ns, number(where), number(pool), number(kept))


class Section:
    """What one process recorded."""

    def __init__(
        self,
        *,
        pid: int = 100,
        parent: int = 1,
        command: Iterable[str] = ("python", "train.py"),
        executable: str = "/usr/bin/python3",
        python: str = "3.12.1",
        host: str = "node1",
        how: int = 1,
        stacks: int = 1,
        flags: int = 0,
        wall_ns: int = 1_700_000_000_000_000_000,
        started_ns: int = 5_000_000_000_000,
        major: int = 1,
        minor: int = 0,
    ) -> None:
        self.started_ns = started_ns
        self.order: list[tuple[int, int]] = []
        self._writers: list[Writer] = []
        texts = {1: "\0".join(command), 2: executable, 3: python, 4: "1.0", 6: host}
        fixed = struct.pack(
            "<8sHHIIIQQQIIII16s",
            b"VRAMTRAC",
            major,
            minor,
            PAGE,
            CHUNK,
            pid,
            wall_ns,
            started_ns,
            12345,
            parent,
            how,
            stacks,
            flags,
            bytes(16),
        )
        said = b"".join(
            struct.pack("<HH", key, len(raw)) + raw for key, value in texts.items() if (raw := value.encode())
        )
        self.header = (fixed + said).ljust(PAGE, b"\0")
        assert len(self.header) == PAGE

    def writer(self, thread: int | None = None) -> Writer:
        made = Writer(self, len(self._writers), thread or 1000 + len(self._writers))
        self._writers.append(made)
        return made

    def bytes(self, *, cut: bool = False) -> bytes:
        """The section; with *cut*, its last chunk ends with its last record."""
        chunks = [bytes(self._writers[writer].chunks[at]) for writer, at in self.order]
        padded = [chunk.ljust(CHUNK, b"\0") for chunk in chunks]
        if cut and chunks:
            padded[-1] = chunks[-1]
        return self.header + b"".join(padded)


class TraceFile:
    def __init__(self) -> None:
        self.sections: list[Section] = []

    def section(self, **header: object) -> Section:
        self.sections.append(Section(**header))  # type: ignore[arg-type]
        return self.sections[-1]

    def bytes(self, *, cut: bool = False) -> bytes:
        *others, last = self.sections
        return b"".join(section.bytes() for section in others) + last.bytes(cut=cut)

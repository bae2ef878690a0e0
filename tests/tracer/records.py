"""Trace files decoded record by record, straight from ``native/FORMAT.md``: for tests of the recorder."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PAGE, CHUNK = 4096, 65536
TEXTS = {1: "command", 2: "executable", 3: "python", 4: "recorder", 5: "cupti", 6: "host", 7: "versions"}


@dataclass
class Record:
    """One record; ``stack`` is the functions, innermost first, as (function, file, line)."""

    name: str
    writer: int
    thread: int
    fields: dict[str, object]
    stack: list[tuple[str, str, int]] = field(default_factory=list)

    def __getitem__(self, key: str) -> object:
        return self.fields[key]


@dataclass
class Section:
    """A trace of one process."""

    pid: int
    parent: int
    attached: bool
    forked: bool
    stacks: int
    texts: dict[str, str]
    records: list[Record]

    def named(self, *names: str) -> list[Record]:
        return [record for record in self.records if record.name in names]


class _Bytes:
    """A chunk, read from its records on; ``done`` where they end."""

    def __init__(self, chunk: bytes) -> None:
        self.chunk, self.at = chunk, 64

    @property
    def done(self) -> bool:
        return self.at >= len(self.chunk) or self.chunk[self.at] == 0

    def byte(self) -> int:
        self.at += 1
        return self.chunk[self.at - 1]

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        value = self.number()
        return (value >> 1) ^ -(value & 1)

    def text(self) -> str:
        length = self.number()
        self.at += length
        return self.chunk[self.at - length : self.at].decode()


def read(path: Path) -> Section:
    """The only section of this file."""
    content = path.read_bytes()
    assert content[:8] == b"VRAMTRAC"
    major, _, page, chunk, pid = struct.unpack_from("<HHIII", content, 8)
    assert (major, page, chunk) == (1, PAGE, CHUNK)
    parent, how, stacks, flags = struct.unpack_from("<IIII", content, 48)
    texts, at = {}, 80
    while at + 4 <= PAGE:
        key, length = struct.unpack_from("<HH", content, at)
        if not key:
            break
        texts[TEXTS[key]] = content[at + 4 : at + 4 + length].decode()
        at += 4 + length
    return Section(pid, parent, how == 2, bool(flags & 1), stacks, texts, list(_records(content)))


def _records(content: bytes) -> Iterator[Record]:
    wheres: dict[int, list[dict[str, int]]] = {}
    places: dict[int, list[tuple[str, str, int]]] = {}
    nodes: dict[int, list[tuple[int, int]]] = {}

    def stack(writer: int, node: int) -> list[tuple[str, str, int]]:
        frames = []
        while node:
            node, place = nodes[writer][node - 1]
            frames.append(places[writer][place - 1])
        return frames

    for start in range(PAGE, len(content), CHUNK):
        chunk = content[start : start + CHUNK]
        if not any(chunk):
            continue
        assert chunk[:8] == b"VRAMCHNK", start
        writer, _, time, thread = struct.unpack_from("<IIQI", chunk, 8)
        data, address = _Bytes(chunk), 0
        for known in (wheres, places, nodes):
            known.setdefault(writer, [])
        while not data.done:
            kind = data.byte()
            fields: dict[str, object] = {}
            frames: list[tuple[str, str, int]] = []
            if kind >= 0x40:
                name = "ALLOC" if kind < 0x60 else "FREE"
                fields["kind" if name == "ALLOC" else "space"] = kind & 0x1F
                time += data.signed()
                where = data.number()
                address += data.signed()
                fields |= {"time": time, "address": address, **(wheres[writer][where - 1] if where else {})}
                if name == "ALLOC":
                    fields["size"] = data.number()
                    frames = stack(writer, data.number())
            elif kind == 0x01:
                name, fields["kind"] = "FAILED", data.byte()
                time += data.signed()
                data.number()
                fields |= {"size": data.number(), "result": data.number()}
                frames = stack(writer, data.number())
            elif kind == 0x02:
                name, thread = "THREAD", data.number()
                fields |= {"thread": thread, "text": data.text()}
            elif kind == 0x03:
                name = "WHERE"
                fields |= {"context": data.number(), "device": data.number() - 1, "stream": data.number()}
                wheres[writer].append(dict(fields))  # type: ignore[arg-type]
            elif kind == 0x04:
                name, fields["native"] = "PLACE", bool(data.byte())
                place = (data.text(), data.text(), data.number())
                places[writer].append(place)
            elif kind == 0x05:
                name = "NODE"
                nodes[writer].append((data.number(), data.number()))
            elif kind in (0x06, 0x07):
                name = "MAP" if kind == 0x06 else "UNMAP"
                time += data.signed()
                data.number()
                address += data.signed()
                fields |= {"address": address, "size": data.number()}
                if kind == 0x06:
                    fields["handle"] = data.number()
            elif kind == 0x08:
                name = "RETAIN"
                time += data.signed()
                fields["handle"] = data.number()
            elif kind == 0x09:
                name = "GAP"
                fields |= {"reason": data.byte(), "what": data.byte()}
                time += data.signed()
            elif kind == 0x0A:
                name, fields["reason"] = "END", data.byte()
                time += data.signed()
                fields |= {"errno": data.number(), "chunks": data.number()}
            elif kind == 0x0B:
                name = "BLOB"
                fields |= {"text": data.text(), "part": data.number(), "parts": data.number()}
                length = data.number()
                fields["bytes"] = chunk[data.at : data.at + length]
                data.at += length
            elif kind == 0x0C:
                name = "MARK"
                time += data.signed()
                fields["text"] = data.text()
            elif kind == 0x0D:
                name = "BEFORE"
                time += data.signed()
                fields |= {"device": data.number() - 1, "size": data.number(), "text": data.text()}
            elif kind == 0x0E:
                name = "TRIM"
                time += data.signed()
                data.number()
                fields |= {"pool": data.number(), "kept": data.number()}
            elif kind == 0x0F:
                name, fields["device"] = "DEVICE", data.number()
                fields |= {"pci": data.text(), "text": data.text(), "size": data.number()}
            else:
                raise AssertionError(f"record type {kind:#x} at {start + data.at - 1}")
            yield Record(name, writer, thread, fields, frames)

"""Programs and libraries as they lie in another process's memory: their symbols, code, and unused ends.

Files may have been replaced since they were mapped, or lie where we cannot look: memory cannot. What
lies there may be forged: every size that is read from it has a limit.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from vram.payloads.procfs import map_lines
from vram.reach.ptrace import Denied, Ended, Memory, Unsafe

PAGE_NBYTES = 4096
_MACHINE_X86_64 = 62
_LOAD, _DYNAMIC, _EH_FRAME = 1, 2, 0x6474E550
_STRTAB, _SYMTAB, _GNU_HASH = 5, 6, 0x6FFFFEF5
_LIBPYTHON = "/libpython3"
_HEADER_NBYTES, _MOST_HEADERS = 56, 256
_MOST_MAPS_NBYTES = 64 << 20
_MOST_DYNAMIC_NBYTES = 1 << 16
_LONGEST_CHAIN = 10_000
_MOST_CODE_NBYTES = 16 << 20


class Mapping(Struct, frozen=True):
    """A line of /proc/PID/maps."""

    start: int
    end: int
    permissions: str
    offset: int
    path: str

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end


def mappings(pid: int) -> tuple[Mapping, ...]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read(_MOST_MAPS_NBYTES + 1)
    except FileNotFoundError as error:
        raise Ended("it has ended") from error
    except OSError as error:
        raise Denied(f"its memory map may not be read ({error.strerror})") from error
    if len(text) > _MOST_MAPS_NBYTES:
        raise Unsafe("its memory map has no end", "it can call vram.agent()")
    return tuple(
        Mapping(line.start, line.end, line.permissions.decode(), line.offset, os.fsdecode(line.path))
        for line in map_lines(text)
    )


def writable(lines: tuple[Mapping, ...]) -> list[Mapping]:
    """Memory that the process may write; what adjoins is one: a structure may lie across."""
    found: list[Mapping] = []
    for line in lines:
        if not line.permissions.startswith("rw"):
            continue
        if found and found[-1].end == line.start:
            found[-1] = replace(found[-1], end=line.end)
        else:
            found.append(line)
    return found


class Image:
    """One program or library: where it lies, and what it exports."""

    def __init__(self, memory: Memory, parts: list[Mapping]) -> None:
        self.path = parts[0].path
        self.parts = parts
        self._memory = memory
        base = parts[0].start
        header = memory.read(base, 64)
        if header[:4] != b"\x7fELF" or header[4] != 2 or header[18:20] != struct.pack("<H", _MACHINE_X86_64):
            raise Unsafe(f"{os.path.basename(self.path)} is no program for x86-64")
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if size != _HEADER_NBYTES or count > _MOST_HEADERS:
            raise Unsafe(f"{os.path.basename(self.path)} is no program for x86-64")
        table = memory.read(base + offset, size * count)
        self._headers = [struct.unpack_from("<IIQQQQQQ", table, size * each) for each in range(count)]
        lowest = min((each[3] for each in self._headers if each[0] == _LOAD), default=0)
        self.bias = base - lowest // PAGE_NBYTES * PAGE_NBYTES
        self._tables: dict[int, int] | None = None

    def __contains__(self, address: int) -> bool:
        return any(address in part for part in self.parts)

    def symbol(self, name: str) -> int | None:
        """The address of what it exports by that name, found as the dynamic loader finds it."""
        tables = self._dynamic()
        if not {_STRTAB, _SYMTAB, _GNU_HASH} <= tables.keys():
            return None
        memory, table = self._memory, tables[_GNU_HASH]
        nbuckets, first, nblooms, _ = struct.unpack("<4I", memory.read(table, 16))
        if not nbuckets:
            return None
        buckets = table + 16 + 8 * nblooms
        wanted = _hash(name)
        index = int.from_bytes(memory.read(buckets + 4 * (wanted % nbuckets), 4), "little")
        for _ in range(_LONGEST_CHAIN):
            if index < first:
                return None
            chained = int.from_bytes(memory.read(buckets + 4 * (nbuckets + index - first), 4), "little")
            if chained | 1 == wanted | 1 and (value := self._value(tables, index, name)) is not None:
                return value
            if chained & 1:
                return None
            index += 1
        return None

    def _value(self, tables: dict[int, int], index: int, name: str) -> int | None:
        entry = self._memory.read(tables[_SYMTAB] + 24 * index, 24)
        at, _, _, section, value, _ = struct.unpack("<IBBHQQ", entry)
        text = self._memory.read(tables[_STRTAB] + at, len(name) + 1)
        return self.bias + value if section and text == name.encode() + b"\0" else None

    def _dynamic(self) -> dict[int, int]:
        if self._tables is None:
            self._tables = {}
            for kind, _, _, address, _, _, nbytes, _ in self._headers:
                if kind == _DYNAMIC and nbytes <= _MOST_DYNAMIC_NBYTES:
                    words = struct.iter_unpack("<QQ", self._memory.read(self.bias + address, nbytes & ~15))
                    # The loader turns them into addresses in place; where it does not, they count from us.
                    self._tables = {
                        tag: value if value >= self.bias else self.bias + value
                        for tag, value in words
                        if tag in (_STRTAB, _SYMTAB, _GNU_HASH)
                    }
        return self._tables

    def unwind_header(self) -> int | None:
        """Where its table of call frames begins."""
        found = [self.bias + each[3] for each in self._headers if each[0] == _EH_FRAME]
        return found[0] if found else None

    def tail(self) -> tuple[int, int] | None:
        """The rest of its last writable page, behind everything that it uses itself."""
        ends = [self.bias + each[3] + each[6] for each in self._headers if each[0] == _LOAD and each[1] & 2]
        if not ends:
            return None
        begins = (max(ends) + 63) & ~63
        last = (max(ends) + PAGE_NBYTES - 1) & ~(PAGE_NBYTES - 1)
        return (begins, last) if begins < last else None

    def find_code(self, code: bytes) -> int | None:
        """The first place in its own code where these bytes are."""
        for part in self.parts:
            if "x" in part.permissions and "r" in part.permissions:
                nbytes = min(part.end - part.start, _MOST_CODE_NBYTES)
                at = self._memory.read(part.start, nbytes).find(code)
                if at >= 0:
                    return part.start + at
        return None


def images(memory: Memory, lines: tuple[Mapping, ...]) -> Iterator[Image]:
    """Every file that is mapped as a program or library, once."""
    parts: dict[str, list[Mapping]] = {}
    for line in lines:
        if line.path.startswith("/") and not line.path.startswith("/dev/"):
            parts.setdefault(line.path, []).append(line)
    for found in parts.values():
        if any("x" in part.permissions for part in found) and found[0].offset == 0:
            try:
                yield Image(memory, found)
            except Ended:
                raise
            except Unsafe:
                continue


def find_python(memory: Memory, lines: tuple[Mapping, ...], program_path: str) -> Image:
    """The program or the library in which Python lies, where only those need be looked at."""
    likely = tuple(line for line in lines if line.path == program_path or _LIBPYTHON in line.path)
    found = list(images(memory, likely))
    program = next((each for each in found if each.path == program_path), None)
    return holder(program, found)


def holder(program: Image | None, found: list[Image]) -> Image:
    """The program or the library in which Python lies."""
    libraries = [each for each in found if _LIBPYTHON in each.path]
    for each in (*libraries, *([program] if program else [])):
        if each.symbol("_PyRuntime") is not None:
            return each
    raise Unsafe(
        "its Python cannot be found in its memory: linked statically, without symbols, or no CPython",
        "an ordinary CPython can; others can call vram.agent()",
    )


def _hash(name: str) -> int:
    value = 5381
    for letter in name.encode():
        value = (value * 33 + letter) & 0xFFFFFFFF
    return value

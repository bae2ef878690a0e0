"""Programs and libraries in another process's memory: symbols, code, unused page ends, and call frames.

They are read from memory, because a file may have been replaced since it was mapped, or be out of our reach.
What is read may be forged: every size has a limit.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator
from operator import itemgetter

from msgspec import Struct

from vram.payloads.procfs import MapLine, map_lines
from vram.reach.machines import this_machine
from vram.reach.machines.machine import Frames
from vram.reach.ptrace import TargetEnded, TargetMemory, TraceDenied, UnsafeToAttach

PAGE_NBYTES = 4096
_LOAD, _DYNAMIC, _EH_FRAME = 1, 2, 0x6474E550
_STRTAB, _SYMTAB, _GNU_HASH = 5, 6, 0x6FFFFEF5
_LIBPYTHON = "/libpython3"
_HEADER_NBYTES, _MAX_HEADERS = 56, 256
_PADDING = 15  # the last byte of e_ident
_MAX_MAPS_NBYTES = 64 << 20
_MAX_DYNAMIC_NBYTES = 1 << 16
_MAX_CHAIN = 10_000
_MAX_CODE_NBYTES = 16 << 20


def mappings(pid: int) -> tuple[MapLine, ...]:
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            text = file.read(_MAX_MAPS_NBYTES + 1)
    except FileNotFoundError as error:
        raise TargetEnded("it has exited") from error
    except OSError as error:
        raise TraceDenied(f"no permission to read its memory map ({error.strerror})") from error
    if len(text) > _MAX_MAPS_NBYTES:
        raise UnsafeToAttach("its memory map is endless", "have it call vram.agent()")
    return tuple(map_lines(text))


def writable(lines: tuple[MapLine, ...]) -> list[range]:
    """Memory that the process may write. Adjacent mappings are one: a structure may lie across both."""
    found: list[range] = []
    for line in lines:
        if line.permissions.startswith(b"rw"):
            begins = found.pop().start if found and found[-1].stop == line.start else line.start
            found.append(range(begins, line.end))
    return found


class ElfImage:
    """One mapped program or library, and what it exports."""

    def __init__(self, memory: TargetMemory, parts: list[MapLine]) -> None:
        self.path = os.fsdecode(parts[0].path)
        self.parts = parts
        self._memory = memory
        base = parts[0].start
        header = memory.read(base, 64)
        machine = this_machine()
        foreign = UnsafeToAttach(f"{os.path.basename(self.path)} is not a program for {machine.name}")
        if (
            header[:4] != b"\x7fELF"
            or header[4] != 2
            or header[18:20] != struct.pack("<H", machine.elf_machine)
        ):
            raise foreign
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        if size != _HEADER_NBYTES or count > _MAX_HEADERS:
            raise foreign
        table = memory.read(base + offset, size * count)
        self._headers = [struct.unpack_from("<IIQQQQQQ", table, size * each) for each in range(count)]
        lowest = min((each[3] for each in self._headers if each[0] == _LOAD), default=0)
        self.bias = base - lowest // PAGE_NBYTES * PAGE_NBYTES
        self._tables: dict[int, int] | None = None

    def __contains__(self, address: int) -> bool:
        return any(address in part for part in self.parts)

    @property
    def empty_string(self) -> int:
        """The address of a zero byte that stays one: the padding of the header's identification."""
        return self.parts[0].start + _PADDING

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
        for _ in range(_MAX_CHAIN):
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
                if kind == _DYNAMIC and nbytes <= _MAX_DYNAMIC_NBYTES:
                    words = struct.iter_unpack("<QQ", self._memory.read(self.bias + address, nbytes & ~15))
                    # The loader makes them addresses in place; where it did not, they are offsets.
                    self._tables = {
                        tag: value if value >= self.bias else self.bias + value
                        for tag, value in words
                        if tag in (_STRTAB, _SYMTAB, _GNU_HASH)
                    }
        return self._tables

    def unwind_header(self) -> int | None:
        """The address of its table of call frames (.eh_frame_hdr)."""
        return next((self.bias + each[3] for each in self._headers if each[0] == _EH_FRAME), None)

    def tail(self) -> tuple[int, int] | None:
        """The rest of its last writable page, after everything that it uses itself."""
        ends = [self.bias + each[3] + each[6] for each in self._headers if each[0] == _LOAD and each[1] & 2]
        if not ends:
            return None
        begins = (max(ends) + 63) & ~63
        last = (max(ends) + PAGE_NBYTES - 1) & ~(PAGE_NBYTES - 1)
        return (begins, last) if begins < last else None

    def find_code(self, code: bytes) -> int | None:
        """The first place in its own code where these bytes are."""
        for part in self.parts:
            if b"x" in part.permissions and b"r" in part.permissions:
                nbytes = min(part.end - part.start, _MAX_CODE_NBYTES)
                at = self._memory.read(part.start, nbytes).find(code)
                if at >= 0:
                    return part.start + at
        return None


def images(memory: TargetMemory, lines: tuple[MapLine, ...]) -> Iterator[ElfImage]:
    """Every file that is mapped as a program or library, once."""
    parts: dict[bytes, list[MapLine]] = {}
    for line in lines:
        if line.path.startswith(b"/") and not line.path.startswith(b"/dev/"):
            parts.setdefault(line.path, []).append(line)
    for found in parts.values():
        if any(b"x" in part.permissions for part in found) and found[0].offset == 0:
            try:
                yield ElfImage(memory, found)
            except TargetEnded:
                raise
            except UnsafeToAttach:
                continue


def find_python(memory: TargetMemory, lines: tuple[MapLine, ...], program_path: str) -> ElfImage:
    """The program or the library that contains Python; only those are read."""
    program_name, library_name = os.fsencode(program_path), _LIBPYTHON.encode()
    likely = tuple(line for line in lines if line.path == program_name or library_name in line.path)
    found = list(images(memory, likely))
    program = next((each for each in found if each.path == program_path), None)
    return python_image(program, found)


def python_image(program: ElfImage | None, found: list[ElfImage]) -> ElfImage:
    """The program or the library that contains Python."""
    libraries = [each for each in found if _LIBPYTHON in each.path]
    for each in (*libraries, *([program] if program else [])):
        if each.symbol("_PyRuntime") is not None:
            return each
    raise UnsafeToAttach(
        "no CPython found in its memory: it is linked statically, has no symbols, or is another Python",
        "use a normal CPython, or have it call vram.agent()",
    )


def _hash(name: str) -> int:
    value = 5381
    for letter in name.encode():
        value = (value * 33 + letter) & 0xFFFFFFFF
    return value


# ---- call frames ----
#
# A stack also holds old return addresses; only the library's own table (.eh_frame, DWARF's call frame
# instructions) says which one counts. What it does not say in its common forms is unknown.

_DATA_RELATIVE_SIGNED_4 = 0x3B
_PC_RELATIVE_SIGNED_4 = 0x1B
_MAX_FRAMES = 6
_MAX_FUNCTIONS = 200_000  # of one library
_MAX_ENTRY_LENGTH = 1 << 16


class FrameRule(Struct, frozen=True):
    """Unwinds the function at *begins*: its frame ends at *register* + *offset*.

    The caller's frame pointer and the return address lie at *saved_at* and *returns_at* from that end; None:
    the registers have them still.
    """

    register: int
    offset: int
    saved_at: int | None
    returns_at: int | None
    begins: int


class Unwinder:
    """Finds the first caller outside *libraries*. Rules are cached by instruction."""

    def __init__(self, memory: TargetMemory, libraries: list[ElfImage]) -> None:
        self._memory, self._libraries = memory, libraries
        self._frames = this_machine().frames
        self._rules: dict[int, FrameRule | None] = {}
        self._tables: dict[int, list[tuple[int, int]]] = {}

    def caller(self, registers: dict[str, int]) -> int | None:
        """The address outside the libraries to which the wait returns; None where unknown."""
        return self._unwind(registers)[0]

    def function(self, registers: dict[str, int]) -> int | None:
        """The address of the library's function that was called from outside; None where unknown."""
        return self._unwind(registers)[1]

    def _unwind(self, registers: dict[str, int]) -> tuple[int | None, int | None]:
        frames = self._frames
        pc, sp, fp = (registers[name] for name in (frames.pc, frames.sp, frames.fp))
        returns = registers[frames.return_register] if frames.return_register else None
        if self._library(pc) is None:
            return None, None
        for _ in range(_MAX_FRAMES):
            rule = self._rule(pc)
            if rule is None:
                return None, None
            frame_end = (sp if rule.register == frames.sp_number else fp) + rule.offset
            if rule.saved_at is not None:
                fp = self._memory.uint64(frame_end + rule.saved_at)
            if rule.returns_at is not None:
                returns = self._memory.uint64(frame_end + rule.returns_at)
            if returns is None:
                return None, None
            # Only the innermost function can have it in the register still.
            pc, sp, returns = returns & frames.significant, frame_end, None
            if self._library(pc) is None:
                return pc, rule.begins
        return None, None

    def _library(self, address: int) -> ElfImage | None:
        return next((each for each in self._libraries if address in each), None)

    def _rule(self, pc: int) -> FrameRule | None:
        if pc not in self._rules:
            try:
                self._rules[pc] = self._read_rule(pc)
            except (UnsafeToAttach, IndexError, struct.error):
                self._rules[pc] = None
        return self._rules[pc]

    def _read_rule(self, pc: int) -> FrameRule | None:
        library = self._library(pc)
        header = library.unwind_header() if library else None
        if header is None:
            return None
        if header not in self._tables:
            self._tables[header] = self._read_table(header)
        entries = self._tables[header]
        if not entries:
            return None
        # A return address may lie after the last instruction of its function: the call itself counts.
        at = bisect_right(entries, pc - 1 - header, key=itemgetter(0))
        return self._read_entry(header + entries[max(0, at - 1)][1], pc - 1)

    def _read_table(self, header: int) -> list[tuple[int, int]]:
        version, _, count_kind, table_kind = self._memory.read(header, 4)
        if version != 1 or count_kind != 3 or table_kind != _DATA_RELATIVE_SIGNED_4:
            return []
        count = self._memory.int32(header + 8)
        if not 0 <= count <= _MAX_FUNCTIONS:
            return []
        return list(struct.iter_unpack("<ii", self._memory.read(header + 12, 8 * count)))

    def _read_entry(self, at: int, place: int) -> FrameRule | None:
        nbytes, back = struct.unpack("<Ii", self._memory.read(at, 8))
        if nbytes > _MAX_ENTRY_LENGTH:
            return None
        body = self._memory.read(at + 8, nbytes - 4)
        common = self._read_common(at + 4 - back)
        if common is None:
            return None
        code_unit, data_unit, first = common
        begins = at + 8 + struct.unpack_from("<i", body)[0]
        (length,) = struct.unpack_from("<I", body, 4)
        if not begins <= place < begins + length:
            return None
        skipped, position = _read_unsigned(body, 8)
        frame = _Frame(self._frames, code_unit, data_unit)
        frame.run(first, begins, 1 << 63)
        frame.initial = dict(frame.saved)
        frame.run(body[position + skipped :], begins, place)
        return frame.rule(begins)

    def _read_common(self, at: int) -> tuple[int, int, bytes] | None:
        nbytes, mark = struct.unpack("<II", self._memory.read(at, 8))
        if nbytes > _MAX_ENTRY_LENGTH:
            return None
        body = self._memory.read(at + 8, nbytes - 4)
        name, _, rest = body[1:].partition(b"\0")
        if mark or name not in (b"zR", b"zRS"):
            return None
        code_unit, position = _read_unsigned(rest, 0)
        data_unit, position = _read_signed(rest, position)
        _, position = _read_unsigned(rest, position)
        length, position = _read_unsigned(rest, position)
        if name == b"zRS" or rest[position] != _PC_RELATIVE_SIGNED_4:
            return None  # a signal frame: the thread waits in a handler
        return code_unit, data_unit, rest[position + length :]


class _Frame:
    """The state of DWARF's call frame machine, as far as it is needed here."""

    def __init__(self, frames: Frames, code_unit: int, data_unit: int) -> None:
        self._frames, self._code_unit, self._data_unit = frames, code_unit, data_unit
        self.register, self.offset = frames.sp_number, 0
        self.saved: dict[int, int] = {}
        """Where registers lie, from the end of the frame."""
        self.initial: dict[int, int] = {}
        self.known = True
        self._kept: list[tuple[int, int, dict[int, int]]] = []

    def rule(self, begins: int) -> FrameRule | None:
        frames = self._frames
        usable = self.known and self.register in (frames.sp_number, frames.fp_number)
        saved, returns = self.saved.get(frames.fp_number), self.saved.get(frames.return_number)
        return FrameRule(self.register, self.offset, saved, returns, begins) if usable else None

    def run(self, code: bytes, place: int, until: int) -> None:
        at = 0
        while at < len(code) and self.known:
            first, at = code[at], at + 1
            kind, low = first >> 6, first & 0x3F
            if kind == 1 or first in (2, 3, 4):  # advance
                width = 0 if kind == 1 else 1 << (first - 2)
                step = low if kind == 1 else int.from_bytes(code[at : at + width], "little")
                place, at = place + step * self._code_unit, at + width
                if place > until:
                    return
            elif kind == 2:  # a register was saved
                offset, at = _read_unsigned(code, at)
                self.saved[low] = offset * self._data_unit
            elif kind == 3:  # it is as it was at the beginning
                self._restore(low)
            else:
                at = self._other(first, code, at)

    def _other(self, first: int, code: bytes, at: int) -> int:
        if first in (0, 0x2D):  # nothing; on aarch64: what is saved is signed from here on, or no longer
            return at
        if first == 0x0A:
            self._kept.append((self.register, self.offset, dict(self.saved)))
        elif first == 0x0B:
            self.register, self.offset, self.saved = self._kept.pop()
        elif first == 0x0C:
            self.register, at = _read_unsigned(code, at)
            self.offset, at = _read_unsigned(code, at)
        elif first == 0x0D:
            self.register, at = _read_unsigned(code, at)
        elif first == 0x0E:
            self.offset, at = _read_unsigned(code, at)
        elif first == 0x06:
            register, at = _read_unsigned(code, at)
            self._restore(register)
        elif first == 0x2E:  # GNU_args_size
            _, at = _read_unsigned(code, at)
        else:
            self.known = False
        return at

    def _restore(self, register: int) -> None:
        if register in self.initial:
            self.saved[register] = self.initial[register]
        else:
            self.saved.pop(register, None)


def _read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    begins = at
    value, at = _read_unsigned(data, at)
    bits = 7 * (at - begins)
    return (value - (1 << bits) if value >> (bits - 1) else value), at

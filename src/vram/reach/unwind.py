"""Who called the C library's function in which a thread waits: told by the library's own call frame table.

A stack also holds old return addresses; only the table (.eh_frame, DWARF's call frame
instructions) says which one counts. What it does not say in its common forms is unknown.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from vram.reach.image import Image
from vram.reach.ptrace import Memory, Unsafe

_RBP, _RSP = 6, 7
_DATA_RELATIVE_SIGNED_4 = 0x3B
_PC_RELATIVE_SIGNED_4 = 0x1B
_MOST_FRAMES = 6
_MOST_FUNCTIONS = 200_000  # of one library
_LONGEST_ENTRY = 1 << 16


class Rule(Struct, frozen=True):
    """How a function's frame is left: the frame's end is *register* + *offset*; where rbp was saved.

    *begins* is where the function does.
    """

    register: int
    offset: int
    rbp_at: int | None
    begins: int


class Unwinder:
    """Finds the first caller outside *libraries*. What was learnt of an instruction is remembered."""

    def __init__(self, memory: Memory, libraries: list[Image]) -> None:
        self._memory, self._libraries = memory, libraries
        self._rules: dict[int, Rule | None] = {}
        self._tables: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def caller(self, registers: dict[str, int]) -> int | None:
        """The address outside the libraries to which the wait returns at last; None where unknown."""
        return self._way_out(registers)[0]

    def function(self, registers: dict[str, int]) -> int | None:
        """Where the library's function begins that was called from outside; None where unknown."""
        return self._way_out(registers)[1]

    def _way_out(self, registers: dict[str, int]) -> tuple[int | None, int | None]:
        rip, rsp, rbp = (registers[name] for name in ("rip", "rsp", "rbp"))
        if self._library(rip) is None:
            return None, None
        for _ in range(_MOST_FRAMES):
            rule = self._rule(rip)
            if rule is None:
                return None, None
            frame_end = (rsp if rule.register == _RSP else rbp) + rule.offset
            if rule.rbp_at is not None:
                rbp = self._memory.number(frame_end + rule.rbp_at)
            rip, rsp = self._memory.number(frame_end - 8), frame_end
            if self._library(rip) is None:
                return rip, rule.begins
        return None, None

    def _library(self, address: int) -> Image | None:
        return next((each for each in self._libraries if address in each), None)

    def _rule(self, rip: int) -> Rule | None:
        if rip not in self._rules:
            try:
                self._rules[rip] = self._read_rule(rip)
            except (Unsafe, IndexError, struct.error):
                self._rules[rip] = None
        return self._rules[rip]

    def _read_rule(self, rip: int) -> Rule | None:
        library = self._library(rip)
        header = library.unwind_header() if library else None
        if header is None:
            return None
        if header not in self._tables:
            self._tables[header] = (header, self._read_table(header))
        # A return address may lie behind the last instruction of its function: the call itself counts.
        place = rip - 1 - header
        entries = self._tables[header][1]
        low, high = 0, len(entries)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if entries[middle][0] <= place else (low, middle)
        return self._read_entry(header + entries[low][1], rip - 1) if entries else None

    def _read_table(self, header: int) -> list[tuple[int, int]]:
        version, _, count_kind, table_kind = self._memory.read(header, 4)
        if version != 1 or count_kind != 3 or table_kind != _DATA_RELATIVE_SIGNED_4:
            return []
        count = self._memory.small(header + 8)
        if not 0 <= count <= _MOST_FUNCTIONS:
            return []
        return list(struct.iter_unpack("<ii", self._memory.read(header + 12, 8 * count)))

    def _read_entry(self, at: int, place: int) -> Rule | None:
        nbytes, back = struct.unpack("<Ii", self._memory.read(at, 8))
        if nbytes > _LONGEST_ENTRY:
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
        skipped, position = _unsigned(body, 8)
        frame = _Frame(code_unit, data_unit)
        frame.run(first, begins, 1 << 63)
        frame.initial_rbp = frame.rbp_at
        frame.run(body[position + skipped :], begins, place)
        return frame.rule(begins)

    def _read_common(self, at: int) -> tuple[int, int, bytes] | None:
        nbytes, mark = struct.unpack("<II", self._memory.read(at, 8))
        if nbytes > _LONGEST_ENTRY:
            return None
        body = self._memory.read(at + 8, nbytes - 4)
        name, _, rest = body[1:].partition(b"\0")
        if mark or name not in (b"zR", b"zRS"):
            return None
        code_unit, position = _unsigned(rest, 0)
        data_unit, position = _signed(rest, position)
        _, position = _unsigned(rest, position)
        length, position = _unsigned(rest, position)
        if name == b"zRS" or rest[position] != _PC_RELATIVE_SIGNED_4:
            return None  # a signal's frame: whoever waits there waits in a handler
        return code_unit, data_unit, rest[position + length :]


class _Frame:
    """The state of DWARF's small machine, as far as the stack and rbp go."""

    def __init__(self, code_unit: int, data_unit: int) -> None:
        self._code_unit, self._data_unit = code_unit, data_unit
        self.register, self.offset = _RSP, 8
        self.rbp_at: int | None = None
        self.initial_rbp: int | None = None
        self.known = True
        self._kept: list[tuple[int, int, int | None]] = []

    def rule(self, begins: int) -> Rule | None:
        usable = self.known and self.register in (_RSP, _RBP)
        return Rule(self.register, self.offset, self.rbp_at, begins) if usable else None

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
                offset, at = _unsigned(code, at)
                self._saved(low, offset * self._data_unit)
            elif kind == 3:  # it is as it was at the beginning
                self._restored(low)
            else:
                at = self._other(first, code, at)

    def _other(self, first: int, code: bytes, at: int) -> int:
        if first == 0:
            return at
        if first == 0x0A:
            self._kept.append((self.register, self.offset, self.rbp_at))
        elif first == 0x0B:
            self.register, self.offset, self.rbp_at = self._kept.pop()
        elif first == 0x0C:
            self.register, at = _unsigned(code, at)
            self.offset, at = _unsigned(code, at)
        elif first == 0x0D:
            self.register, at = _unsigned(code, at)
        elif first == 0x0E:
            self.offset, at = _unsigned(code, at)
        elif first == 0x06:
            register, at = _unsigned(code, at)
            self._restored(register)
        elif first == 0x2E:  # GNU_args_size
            _, at = _unsigned(code, at)
        else:
            self.known = False
        return at

    def _saved(self, register: int, offset: int) -> None:
        if register == _RBP:
            self.rbp_at = offset

    def _restored(self, register: int) -> None:
        if register == _RBP:
            self.rbp_at = self.initial_rbp


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, at


def _signed(data: bytes, at: int) -> tuple[int, int]:
    begins = at
    value, at = _unsigned(data, at)
    bits = 7 * (at - begins)
    return (value - (1 << bits) if value >> (bits - 1) else value), at

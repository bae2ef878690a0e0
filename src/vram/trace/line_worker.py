"""Functions and lines of addresses in ELF files, from their DWARF: a program of its own, with limits.

Run by ``vram.trace.lines`` as ``python -I -S line_worker.py``. Standard input has a JSON object: ``library``
is the path of libvramlines.so, ``files`` a list of ``path``, ``build_id`` (or null), ``not_after_ns`` and
``offsets``. Standard output gets a line of JSON for each file: a list of
``[offset, [[function, file, line], ...]]``, innermost first.

The files may be anybody's: one that ends the process, or keeps it too long, costs its own lines. Nothing of
them is executed, and nothing is fetched from anywhere. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import stat
import struct
import sys
import zlib
from collections.abc import Iterator
from importlib import import_module

MAX_CPU_S = 10
MAX_DATA_NBYTES = 4 << 30
MAX_UNPACKED_NBYTES = 2 << 30
MAX_SECTIONS = 65_279
MAX_NOTE_NBYTES = 1 << 16
MAX_SPLIT_FILES = 1024
DEBUG_FOLDER = "/usr/lib/debug"

HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
COMPRESSION = struct.Struct("<IIQQ")
NOTE, NO_BITS, COMPRESSED = 7, 8, 0x800
BUILD_ID = 3
ZLIB, ZSTD = 1, 2

SECTIONS = ("info", "abbrev", "line", "str", "line_str", "str_offsets", "addr", "ranges", "rnglists")
"""In the order of native/lines/lines.h."""
INDEX_COLUMNS = {
    2: {1: "info", 3: "abbrev", 4: "line", 6: "str_offsets"},
    5: {1: "info", 3: "abbrev", 4: "line", 6: "str_offsets", 8: "rnglists"},
}
"""Of .debug_cu_index, by its version: 7.3.5.3 of DWARF 5, and "DWARF package" of the GCC wiki."""


class Bytes(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("nbytes", ctypes.c_uint64))


class FrameRow(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint32),
        ("line", ctypes.c_uint32),
        ("function", ctypes.c_uint64),
        ("file", ctypes.c_uint64),
    )


class SplitUnit(ctypes.Structure):
    _fields_ = (
        ("unit", ctypes.c_uint64),
        ("dwo_id", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("folder", ctypes.c_char_p),
    )


# ---- ELF files ----


class BadFile(Exception):
    """It is no ELF file that can be read, or not the one that was meant."""


def map_file(file: int, nbytes: int) -> int:
    """The address of the file's contents: mapped, as debug information may have gigabytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    address: int | None = libc.mmap(None, nbytes, 1, 2, file, 0)  # PROT_READ, MAP_PRIVATE
    if address is None or address == ctypes.c_void_p(-1).value:
        raise BadFile
    return address


def open_plain(path: str) -> int:
    """As ``vram.files`` does it: to open a device, or a pipe, already does something."""
    entry = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(entry).st_mode):
            raise BadFile
        return os.open(f"/proc/self/fd/{entry}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(entry)


class ElfFile:
    """A plain 64-bit little-endian ELF file: its sections by name. Stays mapped until the process ends."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            file = open_plain(path)
        except (OSError, ValueError) as error:
            raise BadFile from error
        try:
            status = os.fstat(file)
            if status.st_size < HEADER.size:
                raise BadFile
            self.changed_ns = status.st_mtime_ns
            self.nbytes = status.st_size
            header = HEADER.unpack(os.pread(file, HEADER.size, 0))
            ident, at, size, count, names = header[0], header[6], header[11], header[12], header[13]
            if ident[:6] != b"\x7fELF\x02\x01" or size != SECTION.size or not names < count <= MAX_SECTIONS:
                raise BadFile
            self.rows = list(SECTION.iter_unpack(os.pread(file, size * count, at)))
            if len(self.rows) < count:
                raise BadFile
            self.address = map_file(file, self.nbytes)
        except (OSError, struct.error, OverflowError) as error:
            raise BadFile from error
        finally:
            os.close(file)
        self.kept: list[object] = []
        texts = self._contents(self.rows[names])
        self.sections = {self._name(texts, row[0]): row for row in self.rows if row[1] != NO_BITS}

    def _contents(self, row: tuple[int, ...]) -> bytes:
        offset, nbytes = row[4], row[5]
        if offset > self.nbytes or nbytes > self.nbytes - offset or nbytes > MAX_UNPACKED_NBYTES:
            raise BadFile
        return ctypes.string_at(self.address + offset, nbytes)

    def _name(self, texts: bytes, at: int) -> str:
        return texts[at : at + 64].split(b"\0", 1)[0].decode(errors="replace")

    def contents(self, name: str) -> bytes:
        """The bytes of a section, empty where there is none."""
        return self._contents(self.sections[name]) if name in self.sections else b""

    def section(self, name: str) -> Bytes:
        """Where the bytes of the section ``.debug_NAME`` are, unpacked."""
        row = self.sections.get(f".debug_{name}")
        if row is None:
            packed = self.contents(f".zdebug_{name}")  # as GNU's tools did before ELF had a flag for it
            if packed[:4] != b"ZLIB" or len(packed) < 12:
                return Bytes(None, 0)
            return self._keep(unpack_zlib(packed[12:], int.from_bytes(packed[4:12], "big")))
        offset, nbytes = row[4], row[5]
        if offset > self.nbytes or nbytes > self.nbytes - offset:
            raise BadFile
        if not row[2] & COMPRESSED:
            return Bytes(self.address + offset, nbytes)
        packed = self._contents(row)
        if len(packed) < COMPRESSION.size:
            raise BadFile
        kind, _, unpacked_nbytes, _ = COMPRESSION.unpack_from(packed)
        unpack = {ZLIB: unpack_zlib, ZSTD: unpack_zstd}.get(kind)
        if unpack is None:
            raise BadFile
        return self._keep(unpack(packed[COMPRESSION.size :], unpacked_nbytes))

    def _keep(self, contents: bytes) -> Bytes:
        self.kept.append(contents)
        return Bytes(ctypes.cast(ctypes.c_char_p(contents), ctypes.c_void_p), len(contents))

    def has_lines(self) -> bool:
        return any(name in self.sections for name in (".debug_info", ".zdebug_info"))

    def build_id(self) -> str | None:
        for row in self.rows:
            if row[1] != NOTE or row[5] > MAX_NOTE_NBYTES:
                continue
            notes = self._contents(row)
            while len(notes) >= 12:
                name_nbytes, nbytes, kind = struct.unpack_from("<III", notes)
                begins = 12 + (name_nbytes + 3 & ~3)
                if kind == BUILD_ID and notes[12 : 12 + name_nbytes] == b"GNU\0":
                    return notes[begins : begins + nbytes].hex()
                notes = notes[begins + (nbytes + 3 & ~3) :]
        return None


def unpack_zlib(packed: bytes, nbytes: int) -> bytes:
    if nbytes > MAX_UNPACKED_NBYTES:
        raise BadFile
    try:
        unpacked = zlib.decompressobj().decompress(packed, nbytes) if nbytes else b""
    except zlib.error as error:
        raise BadFile from error
    if len(unpacked) != nbytes:
        raise BadFile
    return unpacked


def unpack_zstd(packed: bytes, nbytes: int) -> bytes:
    """By the system's libzstd, which packaging tools of all distributions need; Python has one since 3.14."""
    if nbytes > MAX_UNPACKED_NBYTES:
        raise BadFile
    try:
        decompress = ctypes.CDLL("libzstd.so.1").ZSTD_decompress
    except (OSError, AttributeError):
        return unpack_zstd_by_python(packed, nbytes)
    decompress.restype = ctypes.c_size_t
    decompress.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    unpacked = ctypes.create_string_buffer(nbytes)
    if decompress(unpacked, nbytes, packed, len(packed)) != nbytes:
        raise BadFile
    return unpacked.raw


def unpack_zstd_by_python(packed: bytes, nbytes: int) -> bytes:
    try:
        zstd = import_module("compression.zstd")
    except ImportError as error:
        raise BadFile from error
    try:
        unpacked: bytes = zstd.ZstdDecompressor().decompress(packed, nbytes)
    except zstd.ZstdError as error:
        raise BadFile from error
    if len(unpacked) != nbytes:
        raise BadFile
    return unpacked


# ---- where the debug information is ----


def debug_file(program: ElfFile) -> ElfFile:
    """The file that has the lines of *program*: itself, or the one that was split off it."""
    if program.has_lines():
        return program
    build_id = program.build_id()
    if build_id and len(build_id) > 2:
        path = f"{DEBUG_FOLDER}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        if (found := open_debug(path)) and found.build_id() == build_id:
            return found
    link = program.contents(".gnu_debuglink")
    name = os.fsdecode(link.split(b"\0", 1)[0])
    if name and "/" not in name and len(link) >= 4:
        folder = os.path.dirname(os.path.realpath(program.path))
        for path in (f"{folder}/{name}", f"{folder}/.debug/{name}", f"{DEBUG_FOLDER}{folder}/{name}"):
            if (found := open_debug(path)) and is_meant(found, build_id, int.from_bytes(link[-4:], "little")):
                return found
    raise BadFile


def open_debug(path: str) -> ElfFile | None:
    try:
        found = ElfFile(path)
    except BadFile:
        return None
    return found if found.has_lines() else None


def is_meant(found: ElfFile, build_id: str | None, checksum: int) -> bool:
    """By the build id, which costs nothing; by the checksum of the link where there is none."""
    theirs = found.build_id()
    if build_id and theirs:
        return build_id == theirs
    return zlib.crc32((ctypes.c_char * found.nbytes).from_address(found.address)) == checksum


class Package:
    """A .dwp file: the split units of a whole program, and where each has its part of every section."""

    def __init__(self, file: ElfFile) -> None:
        self.file = file
        index = file.contents(".debug_cu_index")
        try:
            version, columns, units, slots = struct.unpack_from("<IIII", index)
            if version not in INDEX_COLUMNS:
                version = struct.unpack_from("<H", index)[0]
            named = INDEX_COLUMNS[version]
            at = 16
            ids = struct.unpack_from(f"<{slots}Q", index, at)
            rows = struct.unpack_from(f"<{slots}I", index, at + 8 * slots)
            at += 12 * slots
            self.columns = [named.get(each, "") for each in struct.unpack_from(f"<{columns}I", index, at)]
            at += 4 * columns
            offsets = struct.unpack_from(f"<{units * columns}I", index, at)
            sizes = struct.unpack_from(f"<{units * columns}I", index, at + 4 * units * columns)
        except (struct.error, KeyError, OverflowError) as error:
            raise BadFile from error
        self.parts = {
            dwo_id: list(
                zip(
                    offsets[(row - 1) * columns : row * columns],
                    sizes[(row - 1) * columns : row * columns],
                    strict=True,
                )
            )
            for dwo_id, row in zip(ids, rows, strict=True)
            if 0 < row <= units
        }

    def sections(self, dwo_id: int) -> dict[str, Bytes]:
        found = {"str": self.file.section("str.dwo")}
        for name, (offset, nbytes) in zip(self.columns, self.parts[dwo_id], strict=True):
            whole = self.file.section(f"{name}.dwo") if name else Bytes(None, 0)
            if name and offset <= whole.nbytes and nbytes <= whole.nbytes - offset:
                found[name] = Bytes((whole.bytes or 0) + offset, nbytes)
        return found


def open_package(program: ElfFile, file: ElfFile) -> Package | None:
    for path in dict.fromkeys((f"{program.path}.dwp", f"{file.path}.dwp")):
        try:
            return Package(ElfFile(path))
        except BadFile:
            continue
    return None


def split_sections(unit: SplitUnit, program: ElfFile, package: Package | None) -> dict[str, Bytes]:
    """The sections of a split unit: of the package, or of the .dwo where the compiler put it, or beside."""
    if package is not None and unit.dwo_id in package.parts:
        return package.sections(unit.dwo_id)
    name = os.fsdecode(unit.name)
    beside = os.path.join(os.path.dirname(os.path.realpath(program.path)), os.path.basename(name))
    for path in (os.path.join(os.fsdecode(unit.folder), name), beside):
        try:
            file = ElfFile(path)
            return {each: file.section(f"{each}.dwo") for each in SECTIONS}
        except BadFile:
            continue
    return {}


# ---- frames ----


def load_library(path: str) -> ctypes.CDLL:
    library = ctypes.CDLL(path)
    table = ctypes.POINTER(Bytes * len(SECTIONS))
    number, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.lines_open.argtypes = (table, ctypes.POINTER(number), number)
    library.lines_open.restype = pointer
    library.lines_next_split.argtypes = (pointer, number, ctypes.POINTER(SplitUnit))
    library.lines_add_split.argtypes = (pointer, number, table)
    library.lines_add_split.restype = None
    library.lines_find.argtypes = (pointer,)
    library.lines_find.restype = number
    library.lines_frames.argtypes = (pointer,)
    library.lines_frames.restype = ctypes.POINTER(FrameRow)
    library.lines_texts.argtypes = (pointer, ctypes.POINTER(number))
    library.lines_texts.restype = pointer
    library.lines_close.argtypes = (pointer,)
    library.lines_close.restype = None
    return library


def section_table(found: dict[str, Bytes]) -> ctypes.Array[Bytes]:
    return (Bytes * len(SECTIONS))(*(found.get(name, Bytes(None, 0)) for name in SECTIONS))


def split_units(library: ctypes.CDLL, lines: int) -> Iterator[SplitUnit]:
    unit = SplitUnit()
    at = 0
    while library.lines_next_split(lines, at, ctypes.byref(unit)):
        yield unit
        at = unit.unit + 1


def find(library: ctypes.CDLL, program: ElfFile, offsets: list[int]) -> dict[int, list[list[object]]]:
    """The frames of each offset that has some."""
    file = debug_file(program)
    table = section_table({name: file.section(name) for name in SECTIONS})
    lines = library.lines_open(ctypes.byref(table), (ctypes.c_uint64 * len(offsets))(*offsets), len(offsets))
    if not lines:
        raise BadFile
    package = open_package(program, file)
    kept: list[ctypes.Array[Bytes]] = []
    for unit in split_units(library, lines):
        if len(kept) == MAX_SPLIT_FILES:
            break
        kept.append(section_table(split_sections(unit, program, package)))
        library.lines_add_split(lines, unit.unit, ctypes.byref(kept[-1]))
    count = library.lines_find(lines)
    nbytes = ctypes.c_uint64()
    texts = ctypes.string_at(library.lines_texts(lines, ctypes.byref(nbytes)), nbytes.value)
    rows = library.lines_frames(lines)
    found: dict[int, list[list[object]]] = {}
    known: dict[int, str] = {}

    def text(at: int) -> str:
        if at not in known:
            known[at] = texts[at : texts.index(b"\0", at)].decode(errors="replace")
        return known[at]

    for each in range(count):
        row = rows[each]
        found.setdefault(offsets[row.address], []).append([text(row.function), text(row.file), row.line])
    library.lines_close(lines)
    return found


def answer(library: ctypes.CDLL, wanted: dict[str, object]) -> list[object]:
    path, build_id, offsets = str(wanted["path"]), wanted["build_id"], wanted["offsets"]
    try:
        program = ElfFile(path)
        not_after_ns = int(str(wanted["not_after_ns"]))
        is_meant = program.build_id() == build_id if build_id else program.changed_ns <= not_after_ns
        if not is_meant:
            return []  # it was built again since
        return list(find(library, program, offsets).items())  # type: ignore[arg-type]
    except (BadFile, MemoryError):
        return []


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_DATA_NBYTES, MAX_DATA_NBYTES))
    question = json.load(sys.stdin)
    library = load_library(question["library"])
    for wanted in question["files"]:
        print(json.dumps(answer(library, wanted)), flush=True)


if __name__ == "__main__":
    main()

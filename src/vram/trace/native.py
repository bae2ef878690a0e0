"""The library that reads traces (``native/tracereader``): its functions, and its tables as rows of values."""

from __future__ import annotations

import ctypes
import os
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from vram.errors import BadTrace, VramError
from vram.installation import how_to_get_native
from vram.units import counted, size

LIBRARY = Path(__file__).parent / "lib" / "libvramreader.so"

NO_MEMORY, READ_FAILED = 1, 2
EVERYTHING = 2**64 - 1
"""The time up to which a whole trace is read."""


class LeftRow(NamedTuple):
    """Allocations of a site that were never freed, as far as their verdict is the same."""

    number: int
    nbytes: int
    first_ns: int
    last_ns: int
    largest: int
    quarters: int


class SiteWindowRow(NamedTuple):
    """A site in the window: what was live when it began, what had been made and freed by then, and what was
    live at the highest moment."""

    base_count: int
    base_nbytes: int
    earlier_made: int
    earlier_nbytes: int
    earlier_freed: int
    highest_count: int
    highest_nbytes: int


class SectionRow(NamedTuple):
    wall_ns: int
    first_ns: int
    last_ns: int
    last_allocation_ns: int
    process_started: int
    events: int
    unknown_frees: int
    replaced: int
    lost_stacks: int
    pid: int
    parent_pid: int
    how: int
    stacks: int
    flags: int
    end_reason: int
    end_errno: int
    threads: int
    unreadable_chunks: int
    missing_chunks: int
    cluster: int
    usable: int
    texts: tuple[int, ...]
    file: int


def process_numbers(sections: Iterable[SectionRow]) -> list[int]:
    """The process of each section: one that cannot be read at all, as of a newer format, is none."""
    return list(accumulate((row.usable for row in sections), initial=0))


class GpuRow(NamedTuple):
    number: int
    cluster: int
    name: int
    pci: int
    total_nbytes: int
    live_nbytes: int
    peak_nbytes: int
    allocated_nbytes: int
    peak_ns: int
    peak_event: int
    allocations: int
    frees: int


class SiteRow(NamedTuple):
    stack: int
    kind: int
    process: int
    gpu: int
    made: int
    freed: int
    nbytes: int
    live_count: int
    live_nbytes: int
    median_life_ns: int
    first_ns: int
    peak_count: int
    peak_nbytes: int
    leaked: LeftRow
    kept: LeftRow
    cache: LeftRow
    window: SiteWindowRow


class WindowRow(NamedTuple):
    """A GPU's memory of the driver (kind 0), or a framework's blocks of a kind, in the window of the pass."""

    gpu: int
    kind: int
    base_nbytes: int
    highest_nbytes: int
    end_nbytes: int
    lowest: tuple[int, int, int, int]
    highest_ns: int
    begin_ns: int


class BlobRow(NamedTuple):
    offset: int
    nbytes: int
    part: int
    parts: int
    process: int
    writer: int
    file: int
    name: int


class DamageRow(NamedTuple):
    times: int
    offset: int
    code: int
    section: int
    file: int
    reserved: int


class LiveRow(NamedTuple):
    """An allocation that is live when the trace ends."""

    address: int
    nbytes: int
    time_ns: int
    allocation: int
    site: int
    kind: int


class TotalsRow(NamedTuple):
    events: int
    duration_ns: int
    failures: int
    host_peak_nbytes: int
    used_nbytes: int
    file_nbytes: int
    host_live_nbytes: int


class ReaderTable(NamedTuple):
    number: int
    layout: struct.Struct


# The numbers and layouts of native/tracereader/reader.h.
_SECTIONS = ReaderTable(0, struct.Struct("<9Q12I8I2I"))
_GPUS = ReaderTable(1, struct.Struct("<i3IQ3q4Q"))
_SITES = ReaderTable(2, struct.Struct("<3Ii2QqQq3Qq" + "Qq3Q2I" * 3 + "QqQqQQq"))
TIMELINE = ReaderTable(3, struct.Struct("<Q3q2I"))
"""Time, highest, lowest and last bytes, GPU, zero."""
_NODES = ReaderTable(4, struct.Struct("<2I"))
_PLACES = ReaderTable(5, struct.Struct("<Q4I"))
_STRINGS = ReaderTable(6, struct.Struct("<2Q"))
_BYTES = ReaderTable(7, struct.Struct("<B"))
FAILURES = ReaderTable(8, struct.Struct("<3Q3Ii"))
"""Time, bytes, the driver's result, process, kind, stack, GPU."""
GAPS = ReaderTable(9, struct.Struct("<2Q2I"))
"""Start, end, process, reason."""
MARKS = ReaderTable(10, struct.Struct("<Q2I"))
"""Time, process, text."""
BEFORE = ReaderTable(11, struct.Struct("<2Q2IiI"))
"""Time, bytes, process, source, GPU, zero."""
_BLOBS = ReaderTable(12, struct.Struct("<4Q4I"))
_DAMAGE = ReaderTable(13, struct.Struct("<2Q4I"))
HOLES = ReaderTable(14, struct.Struct("<8Q4I"))
"""Time, live and spanned bytes, holes, their bytes, the largest, first block, blocks, GPU, process, at the
end, zero."""
HOLE_BLOCKS = ReaderTable(15, struct.Struct("<2Q2I"))
"""Address, bytes, stack, zero."""
RESERVED = ReaderTable(16, struct.Struct("<4I2Q"))
"""GPU, process, kind, zero, bytes at the peak and at the end."""
_TOTALS = ReaderTable(17, struct.Struct("<7Q"))
_WINDOWS = ReaderTable(18, struct.Struct("<2I7q3Q"))
_LIVE_ROW = struct.Struct("<4Q2I")
_LIVE_AT_ONCE = 20_000
_EVENTS_IN_A_CALL = 1_000_000  # between two of which Python sees to signals

PLACE = _PLACES.layout
"""Line, language (0 Python), function and file (numbers of strings), zero."""

_COLUMNS = "QQQQQQIIiIBB"
"""The type of each column of ``reader.EventBatch``, as ``array`` has it."""


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise VramError(
            f"the library that reads traces cannot be loaded: {error}",
            hint=how_to_get_native(),
        ) from error
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    out = ctypes.POINTER(u64)
    library.vramreader_new.restype = pointer
    library.vramreader_new.argtypes = (u64, u32, u32)
    library.vramreader_free.restype = None
    library.vramreader_free.argtypes = (pointer,)
    library.vramreader_add_file.argtypes = (pointer, ctypes.c_int)
    library.vramreader_index.argtypes = (pointer,)
    library.vramreader_latest_chunk.restype = u64
    library.vramreader_latest_chunk.argtypes = (pointer,)
    library.vramreader_window.restype = None
    library.vramreader_window.argtypes = (pointer, u64, u64)
    library.vramreader_run.argtypes = (pointer, u64, u64, ctypes.POINTER(u32))
    library.vramreader_live.argtypes = (pointer, out, pointer, u64, out)
    library.vramreader_errno.argtypes = (pointer,)
    library.vramreader_events.argtypes = (pointer, pointer, u64, out)
    library.vramreader_finish.argtypes = (pointer,)
    library.vramreader_table.argtypes = (pointer, u32, ctypes.POINTER(pointer), out, out)
    return library


class Strings:
    """Texts of a trace by number, decoded when needed, what is no UTF-8 with backslashes; 0 is empty."""

    def __init__(self, whole: bytes, ranges: Sequence[int]) -> None:
        self._whole, self._ranges = whole, ranges

    def __getitem__(self, number: int) -> str:
        if not number:
            return ""
        offset, nbytes = self._ranges[2 * number - 2], self._ranges[2 * number - 1]
        return self._whole[offset : offset + nbytes].decode("utf-8", "backslashreplace")


class NativeReader:
    """One pass over some open trace files. Its methods raise BadTrace where that needs too much memory."""

    def __init__(self, limit_nbytes: int, *, points: int = 2000, growing: bool = False) -> None:
        self._library = _library()
        self._limit_nbytes = limit_nbytes
        self._reader = self._library.vramreader_new(limit_nbytes, points, growing)
        if not self._reader:
            raise MemoryError

    def __del__(self) -> None:
        if reader := getattr(self, "_reader", None):
            self._library.vramreader_free(reader)
            self._reader = None

    def _check(self, code: int) -> None:
        if code == NO_MEMORY:
            raise BadTrace(
                f"reading the trace takes more than the {self._limit_nbytes >> 20} MiB that are allowed",
                hint="it is damaged, or has far more live allocations than programs usually have",
            )
        if code == READ_FAILED:
            number = self._library.vramreader_errno(self._reader)
            raise BadTrace(f"the trace cannot be read: {os.strerror(number)}")
        if code:
            raise VramError(f"the trace reader answered with error {code}")

    def add_file(self, descriptor: int) -> None:
        """Read the file behind *descriptor*, which stays open as long as this is used."""
        self._check(self._library.vramreader_add_file(self._reader, descriptor))

    def index(self) -> None:
        self._check(self._library.vramreader_index(self._reader))

    def latest_chunk_ns(self) -> int:
        """When the last chunk begins: about when the trace ends."""
        return int(self._library.vramreader_latest_chunk(self._reader))

    def set_window(self, begin_ns: int, end_ns: int) -> None:
        """The window that sites and windows() are about; before run(). Without it, all of the time."""
        self._library.vramreader_window(self._reader, begin_ns, max(begin_ns, end_ns))

    def run(self, until_ns: int = EVERYTHING) -> None:
        more = ctypes.c_uint32(1)
        while more.value:
            code = self._library.vramreader_run(self._reader, until_ns, _EVENTS_IN_A_CALL, ctypes.byref(more))
            self._check(code)

    def finish(self) -> None:
        self._check(self._library.vramreader_finish(self._reader))

    def events(self, capacity: int) -> tuple[memoryview, ...]:
        """The next events, as the columns of an EventBatch; empty ones at the end."""
        columns = [array(code, bytes(array(code).itemsize * capacity)) for code in _COLUMNS]
        addresses = (ctypes.c_void_p * len(columns))(*(column.buffer_info()[0] for column in columns))
        count = ctypes.c_uint64()
        self._check(self._library.vramreader_events(self._reader, addresses, capacity, ctypes.byref(count)))
        return tuple(memoryview(column)[: count.value] for column in columns)

    # ---- tables ----

    def _raw(self, table: ReaderTable) -> bytes:
        rows, count, nbytes = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        self._check(
            self._library.vramreader_table(
                self._reader, table.number, ctypes.byref(rows), ctypes.byref(count), ctypes.byref(nbytes)
            )
        )
        if nbytes.value != table.layout.size:
            raise VramError(
                "the library that reads traces is of another version",
                hint="build it with `make native`, or install vram again",
            )
        return ctypes.string_at(rows.value, count.value * nbytes.value) if rows.value and count.value else b""

    def rows(self, table: ReaderTable) -> Iterator[tuple[Any, ...]]:
        return table.layout.iter_unpack(self._raw(table))

    def sections(self) -> list[SectionRow]:
        return [SectionRow._make((*row[:21], row[21:29], row[29])) for row in self.rows(_SECTIONS)]

    def gpus(self) -> list[GpuRow]:
        return list(map(GpuRow._make, self.rows(_GPUS)))

    def sites(self) -> list[SiteRow]:
        left = LeftRow._make
        return [
            SiteRow._make(
                (
                    *row[:13],
                    left(row[13:19]),
                    left(row[20:26]),
                    left(row[27:33]),
                    SiteWindowRow._make(row[34:]),
                )
            )
            for row in self.rows(_SITES)
        ]

    def windows(self) -> list[WindowRow]:
        return [WindowRow._make((*row[:5], row[5:9], *row[9:11])) for row in self.rows(_WINDOWS)]

    def nodes(self) -> Sequence[int]:
        """Parent and place of every node, one after the other."""
        return memoryview(self._raw(_NODES)).cast("I")

    def places(self) -> bytes:
        """Rows of PLACE."""
        return self._raw(_PLACES)

    def strings(self) -> Strings:
        return Strings(self._raw(_BYTES), memoryview(self._raw(_STRINGS)).cast("Q"))

    def blobs(self) -> list[BlobRow]:
        return list(map(BlobRow._make, self.rows(_BLOBS)))

    def damage(self) -> list[DamageRow]:
        return list(map(DamageRow._make, self.rows(_DAMAGE)))

    def live(self) -> Iterator[LiveRow]:
        """What is live, allocation by allocation; ``site`` is an index into sites()."""
        position, count = ctypes.c_uint64(), ctypes.c_uint64(1)
        rows = ctypes.create_string_buffer(_LIVE_ROW.size * _LIVE_AT_ONCE)
        while count.value:
            code = self._library.vramreader_live(
                self._reader, ctypes.byref(position), rows, _LIVE_AT_ONCE, ctypes.byref(count)
            )
            self._check(code)
            yield from map(LiveRow._make, _LIVE_ROW.iter_unpack(rows.raw[: _LIVE_ROW.size * count.value]))

    def totals(self) -> TotalsRow:
        return TotalsRow._make(*self.rows(_TOTALS))


# ---- what could not be read, in sentences ----

# By the codes of native/tracereader/reader.h.
_SENTENCES: dict[int, Callable[[int], str]] = {
    1: lambda count: f"{size(count)} of the file belong to nothing that is known; skipped",
    2: lambda count: "the header of a process is unreadable: who it was is not known",
    3: lambda count: f"a process was recorded by a newer vram (format {count}); left out",
    4: lambda count: "the header contradicts itself",
    5: lambda count: f"{counted(count, 'chunk')} of records found twice, read once",
    6: lambda count: f"{counted(count, 'chunk')} of records missing, with the stacks that they defined",
    7: lambda count: f"the rest of {counted(count, 'chunk')} of records is unreadable",
    8: lambda count: "the trace is cut off in the middle of a record",
    9: lambda count: f"{counted(count, 'impossible time')}, replaced by that of the record before or after",
    10: lambda count: f"{counted(count, 'reference')} to stacks or places that are not there",
    11: lambda count: f"{counted(count, 'allocation')} of an impossible size, left out",
    12: lambda count: f"{size(count)} could not be read: the file became shorter meanwhile",
    13: lambda count: f"more marks, gaps or parts of blobs than are kept: {count} left out",
    14: lambda count: "a framework's blocks lie in too many places to say in which memory of the driver",
    15: lambda count: f"{counted(count, 'record')} of a kind that this vram does not know, skipped",
    16: lambda count: f"too many stacks: the {count} that allocated least are one, without frames",
}


def damage_sentences(
    rows: Sequence[DamageRow], sections: Sequence[SectionRow], paths: Sequence[str]
) -> tuple[str, ...]:
    return tuple(_whose(row, sections, paths) + _SENTENCES[row.code](row.times) for row in rows)


def _whose(row: DamageRow, sections: Sequence[SectionRow], paths: Sequence[str]) -> str:
    """Which file and process it is about, where there are several."""
    parts = []
    if len(paths) > 1 and row.file < len(paths):
        parts.append(paths[row.file])
    if len(sections) > 1 and row.section < len(sections) and sections[row.section].pid:
        parts.append(f"pid {sections[row.section].pid}")
    return ", ".join(parts) + ": " if parts else ""

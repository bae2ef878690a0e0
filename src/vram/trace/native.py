"""The library that reads traces (``native/tracereader``): its functions, and its tables as rows of values."""

from __future__ import annotations

import ctypes
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from vram.errors import BadTrace, VramError

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


class TimelineRow(NamedTuple):
    time_ns: int
    highest: int
    lowest: int
    last: int
    gpu: int
    reserved: int


class FailureRow(NamedTuple):
    time_ns: int
    nbytes: int
    result: int
    process: int
    kind: int
    stack: int
    gpu: int


class GapRow(NamedTuple):
    start_ns: int
    end_ns: int
    process: int
    reason: int


class MarkRow(NamedTuple):
    time_ns: int
    process: int
    text: int


class BeforeRow(NamedTuple):
    time_ns: int
    nbytes: int
    process: int
    source: int
    gpu: int
    reserved: int


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


class HolesRow(NamedTuple):
    at_ns: int
    live_nbytes: int
    spanned_nbytes: int
    holes: int
    hole_nbytes: int
    largest_hole: int
    first_block: int
    blocks: int
    gpu: int
    process: int
    at_end: int
    reserved: int


class ReservedRow(NamedTuple):
    gpu: int
    process: int
    kind: int
    reserved: int
    peak_nbytes: int
    end_nbytes: int


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


class _Table(NamedTuple):
    number: int
    layout: struct.Struct


# The numbers and layouts of native/tracereader/reader.h.
_SECTIONS = _Table(0, struct.Struct("<9Q12I8I2I"))
_GPUS = _Table(1, struct.Struct("<i3IQ3q4Q"))
_SITES = _Table(2, struct.Struct("<3Ii2QqQq3Qq" + "Qq3Q2I" * 3))
_TIMELINE = _Table(3, struct.Struct("<Q3q2I"))
_NODES = _Table(4, struct.Struct("<2I"))
_PLACES = _Table(5, struct.Struct("<Q4I"))
_STRINGS = _Table(6, struct.Struct("<2Q"))
_BYTES = _Table(7, struct.Struct("<B"))
_FAILURES = _Table(8, struct.Struct("<3Q3Ii"))
_GAPS = _Table(9, struct.Struct("<2Q2I"))
_MARKS = _Table(10, struct.Struct("<Q2I"))
_BEFORE = _Table(11, struct.Struct("<2Q2IiI"))
_BLOBS = _Table(12, struct.Struct("<4Q4I"))
_DAMAGE = _Table(13, struct.Struct("<2Q4I"))
_HOLES = _Table(14, struct.Struct("<8Q4I"))
_HOLE_BLOCKS = _Table(15, struct.Struct("<2Q2I"))
_RESERVED = _Table(16, struct.Struct("<4I2Q"))
_TOTALS = _Table(17, struct.Struct("<7Q"))
_LIVE_ROW = struct.Struct("<4Q2I")
_LIVE_AT_ONCE = 20_000
_EVENTS_IN_A_CALL = 1_000_000  # between two of which Python sees to signals

PLACE = _PLACES.layout
"""Line, language (0 Python), function and file (numbers of strings), zero."""

COLUMNS = (
    ("time_ns", "Q"),
    ("address", "Q"),
    ("nbytes", "Q"),
    ("allocation", "Q"),
    ("context", "Q"),
    ("stream", "Q"),
    ("process", "I"),
    ("thread", "I"),
    ("gpu", "i"),
    ("stack", "I"),
    ("type", "B"),
    ("kind", "B"),
)
"""The columns of events, with their type as ``array`` has it."""


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise VramError(
            f"the library that reads traces cannot be loaded: {error}",
            hint="build it with `make native`, or install vram again",
        ) from error
    pointer, u32, u64 = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64
    out = ctypes.POINTER(u64)
    library.vramreader_new.restype = pointer
    library.vramreader_new.argtypes = (u64, u32, u32)
    library.vramreader_free.restype = None
    library.vramreader_free.argtypes = (pointer,)
    library.vramreader_add_file.argtypes = (pointer, ctypes.c_int)
    library.vramreader_index.argtypes = (pointer,)
    library.vramreader_run.argtypes = (pointer, u64, u64, ctypes.POINTER(u32))
    library.vramreader_live.argtypes = (pointer, out, pointer, u64, out)
    library.vramreader_errno.argtypes = (pointer,)
    library.vramreader_events.argtypes = (pointer, pointer, u64, out)
    library.vramreader_finish.argtypes = (pointer,)
    library.vramreader_table.argtypes = (pointer, u32, ctypes.POINTER(pointer), out, out)
    return library


class Strings:
    """Texts of a trace by number, decoded as they are needed; 0 is the empty one.

    What is no UTF-8 is written with backslashes.
    """

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

    def run(self, until_ns: int = EVERYTHING) -> None:
        more = ctypes.c_uint32(1)
        while more.value:
            code = self._library.vramreader_run(self._reader, until_ns, _EVENTS_IN_A_CALL, ctypes.byref(more))
            self._check(code)

    def finish(self) -> None:
        self._check(self._library.vramreader_finish(self._reader))

    def events(self, capacity: int) -> tuple[memoryview, ...]:
        """The next events, as columns in the order of COLUMNS; empty ones at the end."""
        columns = [array(code, bytes(array(code).itemsize * capacity)) for _, code in COLUMNS]
        addresses = (ctypes.c_void_p * len(columns))(*(column.buffer_info()[0] for column in columns))
        count = ctypes.c_uint64()
        self._check(self._library.vramreader_events(self._reader, addresses, capacity, ctypes.byref(count)))
        return tuple(memoryview(column)[: count.value] for column in columns)

    # ---- tables ----

    def _raw(self, table: _Table) -> bytes:
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

    def _rows(self, table: _Table, kind: Any) -> list[Any]:
        return list(map(kind._make, table.layout.iter_unpack(self._raw(table))))

    def sections(self) -> list[SectionRow]:
        raw = _SECTIONS.layout.iter_unpack(self._raw(_SECTIONS))
        return [SectionRow._make((*row[:21], row[21:29], row[29])) for row in raw]

    def gpus(self) -> list[GpuRow]:
        return self._rows(_GPUS, GpuRow)

    def sites(self) -> list[SiteRow]:
        raw = _SITES.layout.iter_unpack(self._raw(_SITES))
        left = LeftRow._make
        return [
            SiteRow._make((*row[:13], left(row[13:19]), left(row[20:26]), left(row[27:33]))) for row in raw
        ]

    def timeline(self) -> list[TimelineRow]:
        return self._rows(_TIMELINE, TimelineRow)

    def nodes(self) -> Sequence[int]:
        """Parent and place of every node, one after the other."""
        return memoryview(self._raw(_NODES)).cast("I")

    def places(self) -> bytes:
        """Rows of PLACE."""
        return self._raw(_PLACES)

    def strings(self) -> Strings:
        return Strings(self._raw(_BYTES), memoryview(self._raw(_STRINGS)).cast("Q"))

    def failures(self) -> list[FailureRow]:
        return self._rows(_FAILURES, FailureRow)

    def gaps(self) -> list[GapRow]:
        return self._rows(_GAPS, GapRow)

    def marks(self) -> list[MarkRow]:
        return self._rows(_MARKS, MarkRow)

    def before(self) -> list[BeforeRow]:
        return self._rows(_BEFORE, BeforeRow)

    def blobs(self) -> list[BlobRow]:
        return self._rows(_BLOBS, BlobRow)

    def damage(self) -> list[DamageRow]:
        return self._rows(_DAMAGE, DamageRow)

    def holes(self) -> list[HolesRow]:
        return self._rows(_HOLES, HolesRow)

    def hole_blocks(self) -> list[tuple[int, int, int]]:
        """Address, bytes and stack of each."""
        return [row[:3] for row in _HOLE_BLOCKS.layout.iter_unpack(self._raw(_HOLE_BLOCKS))]

    def reserved(self) -> list[ReservedRow]:
        return self._rows(_RESERVED, ReservedRow)

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
        return TotalsRow._make(_TOTALS.layout.unpack(self._raw(_TOTALS)))

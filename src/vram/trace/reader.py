"""Opens trace files (``native/FORMAT.md``): views, events and blobs of them; follows one that still grows."""

from __future__ import annotations

import errno
import os
import time
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import NamedTuple

from vram.errors import BadTrace
from vram.files import open_plain
from vram.model.trace import CallStack, LiveTrace, TraceView
from vram.trace import elsewhere, output
from vram.trace.analysis import StackTable, ViewBuilder
from vram.trace.elsewhere import Elsewhere
from vram.trace.native import EVERYTHING, BlobRow, NativeReader, process_numbers
from vram.trace.output import HEADER, MAGIC

MAJOR = 1
ATTACHED = 2
"""How recording began, in a section's header: in a process that already ran."""

_MIN_LIMIT, _MAX_LIMIT = 256 << 20, 8 << 30
_TIMES_FILE = 24
"""A record of six bytes makes a row of 64, and its place in two tables: so much memory for a file's size."""

_READ_TWICE_NBYTES = 4 << 20
_MAX_BLOB_NBYTES = 1 << 30
_MAX_LIBRARY_NBYTES, _MAX_LIBRARIES = 8192, 10_000
_EVENTS_AT_ONCE = 65536

EVENT_TYPES = ("", "alloc", "free", "failed", "map", "unmap", "retain", "trim")
ALLOC, FREE, FAILED, MAP, UNMAP, RETAIN, TRIM = range(1, len(EVENT_TYPES))
"""``EventBatch.type``, by the numbers of native/tracereader/reader.h."""


class TraceEvent(NamedTuple):
    """One event. A free has the size, stack, kind and GPU of its allocation.

    ``type`` is an index into EVENT_TYPES; ``kind`` as in the format, 255 where unknown; ``gpu`` -1 where
    unknown. ``allocation`` is the same number for an allocation and its free, 0 where it is unknown. The free
    of a context (kind 13) ends what was allocated in it, without events of their own.
    """

    time_ns: int
    address: int
    nbytes: int
    allocation: int
    context: int
    stream: int
    process: int
    thread: int
    gpu: int
    stack: int
    type: int
    kind: int


class EventBatch(NamedTuple):
    """Some thousand events in the order of time, as columns. ``stacks[number]`` is a CallStack."""

    time_ns: memoryview
    address: memoryview
    nbytes: memoryview
    allocation: memoryview
    context: memoryview
    stream: memoryview
    process: memoryview
    thread: memoryview
    gpu: memoryview
    stack: memoryview
    type: memoryview
    kind: memoryview
    stacks: StackTable

    def rows(self) -> Iterator[TraceEvent]:
        return map(TraceEvent, *self[:-1])


class LiveAllocation(NamedTuple):
    """Memory that is live when the trace ends."""

    process: int
    gpu: int | None
    kind: int
    address: int
    nbytes: int
    time_ns: int
    stack: CallStack


def open_trace(paths: Sequence[Path]) -> Trace:
    """The trace in *paths*, which are read as one. Raises BadTrace where one of them is no trace."""
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(open_file(path))
            require_trace(descriptors[-1], path)
    except BaseException:
        _close(descriptors)
        raise
    return Trace(tuple(map(str, paths)), descriptors)


class Trace:
    """Open trace files. Every method goes through them anew; ``close()`` is optional."""

    def __init__(self, paths: tuple[str, ...], descriptors: Sequence[int]) -> None:
        self.paths = paths
        self._descriptors = tuple(descriptors)
        self._blobs: list[_Blob] | None = None
        self.close = weakref.finalize(self, _close, self._descriptors)

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def view(self, points: int = 2000) -> TraceView:
        """Everything that a report shows; *points* bounds the timeline of a GPU. Its windows begin with the
        recording of a running process; where a program was recorded from its start, with the second half.
        """
        reader = self._pass(points)
        end_ns = self._end_ns(reader)
        is_attached = any(row.how == ATTACHED for row in reader.sections())
        reader.set_window(0 if is_attached else end_ns // 2, end_ns)
        reader.run()
        reader.finish()
        self._blobs = _whole_blobs(reader)  # so that blobs() needs no pass of its own
        return ViewBuilder(reader, StackTable(reader)).view(self.paths)

    def events(self) -> Iterator[EventBatch]:
        """All events in the order of time, some thousand at once."""
        reader = self._pass(2)
        stacks = StackTable(reader)
        processes = process_numbers(reader.sections())
        all_usable = processes == list(range(len(processes)))
        while (columns := reader.events(_EVENTS_AT_ONCE))[0].nbytes:
            batch = EventBatch._make((*columns, stacks))
            if not all_usable:
                renumbered = array("I", [processes[number] for number in batch.process])
                batch = batch._replace(process=memoryview(renumbered))
            yield batch

    def live(self) -> Iterator[LiveAllocation]:
        """What is live at the end, allocation by allocation."""
        reader = self._pass(2)
        reader.run()
        stacks, sites, gpus = StackTable(reader), reader.sites(), reader.gpus()
        processes = process_numbers(reader.sections())
        for row in reader.live():
            site = sites[row.site]
            gpu = gpus[site.gpu].number
            yield LiveAllocation(
                processes[site.process],
                None if gpu < 0 else gpu,
                row.kind,
                row.address,
                row.nbytes,
                row.time_ns,
                stacks[site.stack],
            )

    def blobs(self) -> Iterator[tuple[int, str, bytes]]:
        """Process, name and bytes of each account that a framework left; incomplete ones are left out."""
        for blob in self._all_blobs():
            if (content := _blob_bytes(blob.parts, self._descriptors)) is not None:
                yield blob.process, blob.name, content

    def builds(self) -> Builds:
        """Build ids of libraries whose files have names that the trace lacks, by path; "" where one has none.

        More than one: the file was built again while the program ran, or processes had different ones.
        """
        return _builds(self._all_blobs(), self._descriptors)

    def _all_blobs(self) -> list[_Blob]:
        if self._blobs is None:
            reader = self._pass(2)
            reader.run()
            self._blobs = _whole_blobs(reader)
        return self._blobs

    def _end_ns(self, reader: NativeReader) -> int:
        """When the trace ends. Of a large one, only about: a chunk of it is a small part of the time."""
        if sum(os.fstat(descriptor).st_size for descriptor in self._descriptors) > _READ_TWICE_NBYTES:
            return reader.latest_chunk_ns()
        first = self._pass(2)
        first.run()
        return first.totals().duration_ns

    def _pass(self, points: int) -> NativeReader:
        nbytes = sum(os.fstat(descriptor).st_size for descriptor in self._descriptors)
        limit_nbytes = min(max(_MIN_LIMIT, nbytes * _TIMES_FILE), _MAX_LIMIT)
        reader = NativeReader(limit_nbytes, points=points)
        for descriptor in self._descriptors:
            reader.add_file(descriptor)
        reader.index()
        return reader


class _Blob(NamedTuple):
    process: int
    name: str
    parts: Sequence[BlobRow]


def _whole_blobs(reader: NativeReader) -> list[_Blob]:
    """Those of which all parts are there, in the order in which their writer wrote them."""
    strings, processes = reader.strings(), process_numbers(reader.sections())
    found: list[_Blob] = []
    begun: dict[tuple[int, int, int], list[BlobRow]] = {}
    for row in reader.blobs():
        # Threads write their blobs one part at a time: another name may come between.
        parts = begun.setdefault((row.process, row.writer, row.name), [])
        if parts and row.parts != parts[0].parts:
            parts.clear()
        if row.part != len(parts):
            parts.clear()
            if row.part:
                continue
        parts.append(row)
        if len(parts) == row.parts:
            found.append(_Blob(processes[row.process], strings[row.name], tuple(parts)))
            parts.clear()
    return found


def _blob_bytes(parts: Sequence[BlobRow], descriptors: Sequence[int]) -> bytes | None:
    if sum(part.nbytes for part in parts) > _MAX_BLOB_NBYTES:
        return None
    read = [os.pread(descriptors[part.file], part.nbytes, part.offset) for part in parts]
    complete = all(len(got) == part.nbytes for got, part in zip(read, parts, strict=True))
    return b"".join(read) if complete else None


class Builds(dict[str, set[str]]):
    """Build ids by path; and where those paths mean these files, unless it is here."""

    elsewhere: Elsewhere | None = None


def _builds(blobs: Iterable[_Blob], descriptors: Sequence[int]) -> Builds:
    found = Builds()
    for blob in blobs:
        if blob.name == "elsewhere":
            found.elsewhere = elsewhere.read(_blob_bytes(blob.parts, descriptors) or b"")
        if blob.name != "library" or sum(part.nbytes for part in blob.parts) > _MAX_LIBRARY_NBYTES:
            continue
        path, separator, build = (_blob_bytes(blob.parts, descriptors) or b"").partition(b"\0")
        if separator and len(found) < _MAX_LIBRARIES:
            ids = found.setdefault(path.decode("utf-8", "backslashreplace"), set())
            ids.add(build.decode("ascii", "replace"))
    return found


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


# ---- a trace that is still written ----

_FOLLOW_LIMIT = 4 << 30
_SETTLED_NS = 50_000_000
"""Records of different threads become visible in any order: they are put in order once they are so old."""


class Follower:
    """The trace in *parts*, or in the parts of *prefix* (``PREFIX.PID.part``), which may appear meanwhile.
    With *run*, only those of that run: in a folder like /tmp any user may put files of such names."""

    def __init__(
        self,
        prefix: Path | None = None,
        parts: Iterable[Path] = (),
        *,
        run: str | None = None,
        points: int = 500,
    ) -> None:
        self._prefix = prefix
        self._run = run
        self._waiting = list(parts)
        self._known: set[Path] = set()
        self._descriptors: list[int] = []
        self._reader = NativeReader(_FOLLOW_LIMIT, points=points, growing=True)
        self._stacks = StackTable(self._reader)
        self.problems: list[str] = []
        """Files that are no traces, each named once."""
        self.close = weakref.finalize(self, _close, self._descriptors)

    def advance(self, *, everything: bool = False) -> None:
        """Read what was written since the last call; with *everything*, also what is not settled yet."""
        self._add_files()
        self._reader.index()
        self._reader.run(EVERYTHING if everything else max(0, time.monotonic_ns() - _SETTLED_NS))

    def live(self) -> LiveTrace:
        """What is live now, by stack and by GPU."""
        return ViewBuilder(self._reader, self._stacks).live_trace()

    def builds(self) -> Builds:
        """As :meth:`Trace.builds`, of what was read up to now."""
        return _builds(_whole_blobs(self._reader), self._descriptors)

    def _add_files(self) -> None:
        for path in [*self._waiting, *self._found()]:
            if path in self._known:
                continue
            try:
                descriptor = open_file(path)
            except BadTrace as error:
                self._refuse(path, error)
                continue
            # The magic is the last that is written of a header.
            if os.pread(descriptor, len(MAGIC), 0).strip(b"\0") == b"":
                os.close(descriptor)
                continue
            try:
                require_trace(descriptor, path)
            except BadTrace as error:
                os.close(descriptor)
                self._refuse(path, error)
                continue
            self._known.add(path)
            self._descriptors.append(descriptor)
            self._reader.add_file(descriptor)

    def _refuse(self, path: Path, error: BadTrace) -> None:
        self._known.add(path)
        self.problems.append(str(error))

    def _found(self) -> Sequence[Path]:
        if self._prefix is None:
            return ()
        if self._run is not None:
            return [Path(part.path) for part in output.parts(str(self._prefix), self._run)]
        folder, name = self._prefix.parent, escape(self._prefix.name)
        return sorted(folder.glob(f"{name}.*.part"))


# ---- files ----


def open_file(path: Path) -> int:
    """A descriptor of the plain file *path*; nothing else is opened."""
    try:
        return open_plain(str(path))
    except FileNotFoundError as error:
        raise BadTrace(f"there is no file {path}", hint="`vram run -o FILE -- COMMAND` makes one") from error
    except IsADirectoryError as error:
        raise BadTrace(f"{path} is a folder, not a trace", hint="name the trace file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        if getattr(error, "errno", 0) == errno.EINVAL:
            raise BadTrace(f"{path} is not a plain file", hint="copy the trace into a file first") from error
        reason = getattr(error, "strerror", None) or str(error)
        denied = getattr(error, "errno", 0) in (errno.EACCES, errno.EPERM)
        raise BadTrace(
            f"cannot open {path}: {reason}",
            hint="a trace can be read by the user who recorded it" if denied else "",
        ) from error


def require_trace(descriptor: int, path: Path) -> None:
    """Raise BadTrace unless the file begins as a trace of this version does."""
    head = os.pread(descriptor, HEADER.size, 0)
    if not head:
        raise BadTrace(f"{path} is empty", hint="the program that was recorded may have ended at once")
    if not head.startswith(MAGIC[: len(head)]):
        raise BadTrace(f"{path} is not a trace of vram", hint="`vram run -o FILE -- COMMAND` makes one")
    if len(head) < 12:
        raise BadTrace(f"{path} is cut off within its header")
    major = int.from_bytes(head[8:10], "little")
    if major != MAJOR:
        raise BadTrace(
            f"{path} was written by a {'newer' if major > MAJOR else 'different'} vram: "
            f"format {major}, this one reads {MAJOR}",
            hint="read it with the vram that wrote it, or a later one",
        )
    if len(head) < HEADER.size:
        raise BadTrace(f"{path} is cut off within its header")

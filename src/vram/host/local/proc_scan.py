"""The walk over /proc for open files: in C (libvramscan), or in Python where that is missing. Same answers.

Layouts are as native/procscan/scan.h has them.
"""

from __future__ import annotations

import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cmp_to_key, partial
from itertools import islice
from typing import Protocol

from msgspec import Struct
from msgspec.structs import astuple, replace

from vram.payloads.procfs import ProcessFolder, drain, inside_of, living_thread

_FILE = struct.Struct("=iiiIQQQqIIII")
_DESCRIPTOR = struct.Struct("=iiII")
_NO_INFO = (1 << 32) - 1
_UNKNOWN_START = (1 << 64) - 1
_LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvramscan.so")
_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILE = 0
_MAX_INFO_NBYTES = 64 * 1024

Prefixes = Sequence[bytes]
Pids = Sequence[int] | None
Descriptor = tuple[int, int, int]
Compare = Callable[[Descriptor, Descriptor], int]


class RawFile(Struct, frozen=True):
    """A descriptor as /proc shows it. ``mode`` is 0 where the file could not be asked.

    ``info`` is the fdinfo of a DRM file; None where it could not be read, for the reason that
    ``error`` gives. ``thread`` is the one through whose folder it was seen, where that is not the
    process's first: a first thread that has ended shows none.
    """

    pid: int
    started_at: int | None
    fd: int
    link: bytes
    device: int
    inode: int
    size: int
    mode: int
    info: bytes | None = None
    error: int = 0
    thread: int | None = None


class ScanLimits(Struct, frozen=True):
    """How many descriptors a walk may find: of one process, in all, of one user, of all users but root.

    Any user can open files without end whose links look like a device's. A process with a context on each of
    16 GPUs has about 400; one for each allocation that it shares comes to that. Of a user who has more than
    the share, only the first of each further process is found.
    """

    of_process: int = 1 << 12
    in_all: int = 1 << 20
    of_user: int = 1 << 16
    of_users: int = 1 << 18


LIMITS = ScanLimits()


class ScanResult(Struct, frozen=True):
    """What a walk over /proc found: matching descriptors, and owners of processes that may not be read.

    ``late``: the deadline came first. ``full``: there were more than the limit. ``cut`` are the pids that
    have more than were read: than a process's limit, or than was left of their user's share.
    """

    files: list[RawFile]
    denied: list[int]
    late: bool = False
    full: bool = False
    cut: tuple[int, ...] = ()


class Scan(Protocol):
    """A walk over /proc: native, or Python where that is missing. One contract for both."""

    def files(
        self, root: str, prefixes: Prefixes, pids: Pids, deadline: float, informed: Prefixes = ()
    ) -> ScanResult: ...

    def describe(self, descriptors: Sequence[tuple[int, int, int]], deadline: float) -> list[int | None]: ...


def best_scan() -> Scan:
    try:
        return NativeScan()
    except OSError:
        return PythonScan()


# ---- in C ----


class NativeScan:
    """Scans and compares by the native library; raises OSError where it is missing."""

    def __init__(self, path: str = _LIBRARY, limits: ScanLimits = LIMITS) -> None:
        import ctypes

        self._limits = limits

        self._c = ctypes
        self._library = ctypes.CDLL(path)
        self._result = _result_type()

    def files(
        self, root: str, prefixes: Prefixes, pids: Pids, deadline: float, informed: Prefixes = ()
    ) -> ScanResult:
        """Read *pids* or all processes; links that begin with one of *informed* come with their fdinfo."""
        c, result = self._c, self._result()
        chosen = (c.c_int32 * len(pids))(*pids) if pids else None
        error = self._library.vramscan_scan(
            os.fsencode(root),
            b"\0".join(prefixes) + b"\0\0",
            b"\0".join(informed) + b"\0\0" if informed else None,
            chosen,
            c.c_uint64(len(pids) if pids else 0),
            c.c_uint64(int(deadline * 1e9)),
            (c.c_uint32 * 4)(*astuple(self._limits)),
            c.byref(result),
        )
        try:
            if error:
                raise OSError(-error, os.strerror(-error))
            raw = c.string_at(result.files, result.files_nbytes) if result.files_nbytes else b""
            files, cut = _unpack(raw)
            denied = c.string_at(result.denied_uids, 4 * result.denied) if result.denied else b""
            owners = list(memoryview(denied).cast("I"))
            return ScanResult(files, owners, bool(result.late), bool(result.full), cut)
        finally:
            self._library.vramscan_release(c.byref(result))

    def describe(self, descriptors: Sequence[tuple[int, int, int]], deadline: float) -> list[int | None]:
        """A number for the open file behind each (pid, fd, group); equal numbers, same file."""
        c = self._c
        packed = c.create_string_buffer(b"".join(_DESCRIPTOR.pack(*each, 0) for each in descriptors))
        self._library.vramscan_describe(packed, c.c_uint64(len(descriptors)), c.c_uint64(int(deadline * 1e9)))
        found = _DESCRIPTOR.iter_unpack(packed.raw[: _DESCRIPTOR.size * len(descriptors)])
        numbers = {(pid, fd): number for pid, fd, _, number in found}
        return [numbers[pid, fd] or None for pid, fd, _ in descriptors]


@cache
def _result_type() -> type:
    import ctypes

    class Result(ctypes.Structure):
        _fields_ = (
            ("files", ctypes.c_void_p),
            ("files_nbytes", ctypes.c_uint64),
            ("denied_uids", ctypes.c_void_p),
            ("denied", ctypes.c_uint64),
            ("processes", ctypes.c_uint64),
            ("late", ctypes.c_uint32),
            ("full", ctypes.c_uint32),
        )

    return Result


def _unpack(raw: bytes) -> tuple[list[RawFile], tuple[int, ...]]:
    """The descriptors, and the pids that have more of them."""
    files: list[RawFile] = []
    cut: list[int] = []
    at = 0
    while at < len(raw):
        fields: tuple[int, ...] = _FILE.unpack_from(raw, at)
        pid, fd, thread, more, started_at, device, inode, size, mode, length, info_length, error = fields
        at += _FILE.size
        link = raw[at : at + length]
        at += (length + 7) & ~7
        info = None
        if info_length != _NO_INFO:
            info = raw[at : at + info_length]
            at += (info_length + 7) & ~7
        start = None if started_at == _UNKNOWN_START else started_at
        other = thread if thread != pid else None
        files.append(RawFile(pid, start, fd, link, device, inode, size, mode, info, error, other))
        if more:
            cut.append(pid)
    return files, tuple(cut)


# ---- in Python: slower ----


class PythonScan:
    """Scans and compares with nothing but the standard library."""

    def __init__(self, limits: ScanLimits = LIMITS) -> None:
        self._limits = limits

    def files(
        self, root: str, prefixes: Prefixes, pids: Pids, deadline: float, informed: Prefixes = ()
    ) -> ScanResult:
        """Read *pids* or all processes; links that begin with one of *informed* come with their fdinfo."""
        files: list[RawFile] = []
        denied: list[int] = []
        cut: list[int] = []
        late = full = False
        shares: Counter[int] = Counter()
        for pid in pids or [int(name) for name in os.listdir(root) if name.isdigit()]:
            late = time.monotonic() >= deadline
            if late or full:
                break
            uid = next(iter(_owner(root, pid)), 0)
            limit = self._limit(uid, shares)
            try:
                found = _of_process(root, pid, tuple(prefixes), limit + 1)
            except PermissionError:
                denied += _owner(root, pid)
                continue
            except OSError:
                continue  # it has ended meanwhile
            if len(found) > limit:
                cut.append(pid)
            room = self._limits.in_all - len(files)
            wanted = found[:limit]
            shares[uid] += len(wanted)
            full = len(wanted) > room
            files += [_add_info(root, file, tuple(informed)) for file in wanted[:room]]
        return ScanResult(files, denied, late, full, tuple(cut))

    def _limit(self, uid: int, shares: Counter[int]) -> int:
        """How many descriptors of one more process of *uid* are read."""
        of_users = shares.total() - shares[0]
        over = uid and (shares[uid] >= self._limits.of_user or of_users >= self._limits.of_users)
        return min(1, self._limits.of_process) if over else self._limits.of_process

    def describe(self, descriptors: Sequence[Descriptor], deadline: float) -> list[int | None]:
        """A number for the open file behind each (pid, fd, group); equal numbers, same file.

        None at all where there is no time for all of them: one that is missing would look like a file of its
        own.
        """
        compare = _kernel_compare()
        if compare is None:
            return [None] * len(descriptors)
        known = [each for each in descriptors if time.monotonic() < deadline and compare(each, each) == 0]
        try:
            known.sort(key=cmp_to_key(partial(_order, compare, deadline)))
        except TimeoutError:
            return [None] * len(descriptors)
        numbers: dict[Descriptor, int] = {}
        number = 0
        for before, each in zip([None, *known], known, strict=False):
            same = before is not None and before[2] == each[2] and compare(before, each) == 0
            number += not same
            numbers[each] = number
        return [numbers.get(each) for each in descriptors]


def _of_process(root: str, pid: int, prefixes: tuple[bytes, ...], most: int) -> list[RawFile]:
    try:
        found = _of_thread(root, pid, None, prefixes, most)
    except PermissionError:
        if os.geteuid() not in _owner(root, pid) or not _is_zombie(root, pid):
            raise
        found = None
    # A first thread that has ended shows none, to root, and is closed to other users.
    return (_of_other_threads(root, pid, prefixes, most) if found is None else found) or []


def _of_other_threads(root: str, pid: int, prefixes: tuple[bytes, ...], most: int) -> list[RawFile] | None:
    """The descriptors of a process that lives on after the end of its first thread."""
    with ProcessFolder(root, pid) as folder:
        stat = folder.stat()
        thread = living_thread(folder, stat) if stat else None
    return _of_thread(root, pid, thread, prefixes, most) if thread else None


def _of_thread(
    root: str, pid: int, thread: int | None, prefixes: tuple[bytes, ...], most: int
) -> list[RawFile] | None:
    """Its matching descriptors, the *most* lowest; None where it has no descriptor at all."""
    folder = os.open(f"{root}/{pid}/{inside_of(thread)}fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listed = sorted((name for name in os.listdir(folder) if name.isdecimal()), key=int)
        links = ((fd, _link(folder, fd)) for fd in listed)
        found = list(islice(((fd, link) for fd, link in links if link.startswith(prefixes)), most))
        started_at = _started_at(root, pid) if found else None
        raw = [_raw(pid, started_at, folder, fd, link) for fd, link in found]
        return [replace(file, thread=thread) for file in raw] if listed else None
    finally:
        os.close(folder)


def _is_zombie(root: str, pid: int) -> bool:
    with ProcessFolder(root, pid) as folder:
        stat = folder.stat()
        return stat is not None and stat.state == "Z"


def _link(folder: int, fd: str) -> bytes:
    try:
        return os.readlink(fd.encode(), dir_fd=folder)
    except PermissionError:
        raise
    except OSError:
        return b""  # closed meanwhile


def _raw(pid: int, started_at: int | None, folder: int, fd: str, link: bytes) -> RawFile:
    try:
        about = os.stat(fd, dir_fd=folder)
    except OSError:
        return RawFile(pid, started_at, int(fd), link, 0, 0, 0, 0)
    return RawFile(pid, started_at, int(fd), link, about.st_rdev, about.st_ino, about.st_size, about.st_mode)


def _add_info(root: str, file: RawFile, prefixes: tuple[bytes, ...]) -> RawFile:
    if not file.link.startswith(prefixes or (b"\0",)):
        return file
    path = f"{root}/{file.pid}/{inside_of(file.thread)}fdinfo/{file.fd}"
    try:
        # Not to wait is meant for what is no fdinfo: the kernel's own are always ready.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        return replace(file, error=error.errno or 0)
    try:
        return replace(file, info=drain(descriptor, _MAX_INFO_NBYTES))
    except OSError as error:
        return replace(file, error=error.errno or 0)
    finally:
        os.close(descriptor)


def _started_at(root: str, pid: int) -> int | None:
    with ProcessFolder(root, pid) as folder:
        stat = folder.stat()
        return stat.started_at if stat else None


def _owner(root: str, pid: int) -> list[int]:
    try:
        return [os.stat(f"{root}/{pid}").st_uid]
    except OSError:
        return []


def _kernel_compare() -> Compare | None:
    number = _KCMP.get(os.uname().machine)
    if number is None:
        return None
    import ctypes

    call = ctypes.CDLL(None).syscall

    def compare(one: Descriptor, other: Descriptor) -> int:
        answer: int = call(number, one[0], other[0], _KCMP_FILE, one[1], other[1])
        return answer

    return compare


def _order(compare: Compare, deadline: float, one: Descriptor, other: Descriptor) -> int:
    if time.monotonic() >= deadline:
        raise TimeoutError
    if one[2] != other[2]:
        return -1 if one[2] < other[2] else 1
    return {1: -1, 2: 1}.get(compare(one, other), 0)

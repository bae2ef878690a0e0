"""The walk over /proc in C: libvramscan, by ctypes. Layouts as native/procscan/scan.h has them."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from functools import cache

from vram.host.local.device_files import LIMITS, Limits, RawFile, Walked

_FILE = struct.Struct("=iiiIQQQqIIII")
_DESCRIPTOR = struct.Struct("=iiII")
_NO_INFO = (1 << 32) - 1
_UNKNOWN_START = (1 << 64) - 1
_LIBRARY = os.path.join(os.path.dirname(__file__), "lib", "libvramscan.so")


class NativeScan:
    """Scans and compares by the native library; raises OSError where it is missing."""

    def __init__(self, path: str = _LIBRARY, limits: Limits = LIMITS) -> None:
        import ctypes

        self._limits = limits

        self._c = ctypes
        self._library = ctypes.CDLL(path)
        self._result = _result_type()

    def files(
        self,
        root: str,
        prefixes: Sequence[bytes],
        pids: Sequence[int] | None,
        deadline: float,
        informed: Sequence[bytes] = (),
    ) -> Walked:
        """Look at *pids* or everybody; links that begin with one of *informed* come with their fdinfo."""
        c, result = self._c, self._result()
        chosen = (c.c_int32 * len(pids))(*pids) if pids else None
        error = self._library.vramscan_scan(
            os.fsencode(root),
            b"\0".join(prefixes) + b"\0\0",
            b"\0".join(informed) + b"\0\0" if informed else None,
            chosen,
            c.c_uint64(len(pids) if pids else 0),
            c.c_uint64(int(deadline * 1e9)),
            (c.c_uint32 * 2)(self._limits.of_process, self._limits.in_all),
            c.byref(result),
        )
        try:
            if error:
                raise OSError(-error, os.strerror(-error))
            raw = c.string_at(result.files, result.files_nbytes) if result.files_nbytes else b""
            files, cut = _unpack(raw)
            denied = c.string_at(result.denied_uids, 4 * result.denied) if result.denied else b""
            owners = list(memoryview(denied).cast("I"))
            return Walked(files, owners, bool(result.late), bool(result.full), cut)
        finally:
            self._library.vramscan_release(c.byref(result))

    def describe(self, descriptors: Sequence[tuple[int, int, int]], deadline: float) -> list[int | None]:
        """A number for the open file behind each (pid, fd, group); equal numbers, same file."""
        c = self._c
        packed = c.create_string_buffer(b"".join(_DESCRIPTOR.pack(*each, 0) for each in descriptors))
        self._library.vramscan_describe(packed, c.c_uint64(len(descriptors)), c.c_uint64(int(deadline * 1e9)))
        told = _DESCRIPTOR.iter_unpack(packed.raw[: _DESCRIPTOR.size * len(descriptors)])
        numbers = {(pid, fd): number for pid, fd, _, number in told}
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
        pid, fd, thread, more, started_at, device, inode, size, mode, length, told, error = fields
        at += _FILE.size
        link = raw[at : at + length]
        at += (length + 7) & ~7
        info = None
        if told != _NO_INFO:
            info = raw[at : at + told]
            at += (told + 7) & ~7
        start = None if started_at == _UNKNOWN_START else started_at
        other = thread if thread != pid else None
        files.append(RawFile(pid, start, fd, link, device, inode, size, mode, info, error, other))
        if more:
            cut.append(pid)
    return files, tuple(cut)

"""Is this control descriptor an exported allocation? Import a copy of it, map it, and see.

    exports PID:STARTED_AT:FD…      answers are lines of JSON on descriptor 3

Runs in a process of its own, because it loads libcuda. It never makes a context: all that
it takes is 3.25 MiB of GPU memory while it lives, and what it imports is gone when it ends.
An import tells no size, but the driver maps an imported allocation at its own size and at
no other. A try takes 3.8 µs, so every size a GPU could hold is tried in a third of a second
(measured on an H200, driver 580.159).
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint64, c_ushort, c_void_p

from . import GONE, end_with_parent, say
from .libcuda import device_uuid, load
from .procfs import started_at

PIDFD_GETFD = 438  # the same number on every architecture
POSIX_DESCRIPTOR = 1
PINNED = 1
MINIMUM_GRANULARITY = 0

libc = ctypes.CDLL(None, use_errno=True)


class ImportFailed(Exception):
    """The driver or the kernel refused; ``status`` and ``code`` are those of the observation."""

    def __init__(self, status: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class MemoryLocation(ctypes.Structure):
    _fields_ = (("kind", c_int), ("id", c_int))


class Properties(ctypes.Structure):
    """How an allocation was made; the driver fills it in for an imported one."""

    _fields_ = (
        ("kind", c_int),
        ("handle_types", c_int),
        ("location", MemoryLocation),
        ("windows", c_void_p),
        ("flags", ctypes.c_ubyte * 2),
        ("usage", c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class Importer:
    """The few calls of libcuda that need no context."""

    def __init__(self) -> None:
        try:
            self._cuda = load()
        except OSError:
            raise ImportFailed(
                "unsupported", "no-libcuda", "the CUDA driver library (libcuda.so.1) is not installed"
            ) from None
        self.check("cuInit", 0)

    def check(self, name: str, *arguments: object) -> None:
        code = self.result(name, *arguments)
        if code:
            raise ImportFailed("failed", f"cuda-{code}", f"{name} failed with CUDA error {code}")

    def result(self, name: str, *arguments: object) -> int:
        function = getattr(self._cuda, name, None)
        if function is None:
            raise ImportFailed("unsupported", "no-driver-call", f"this driver has no {name}")
        return int(function(*arguments))

    def about(self, ordinal: int) -> tuple[str, int]:
        """The UUID of a device, and how much memory it has."""
        device, raw, nbytes = c_int(), (c_char * 16)(), c_size_t()
        self.check("cuDeviceGet", byref(device), ordinal)
        self.check("cuDeviceGetUuid_v2", raw, device)
        self.check("cuDeviceTotalMem_v2", byref(nbytes), device)
        return device_uuid(bytes(raw)), nbytes.value


def copy_descriptor(pid: int, start: int, fd: int) -> int:
    """A copy of another process's descriptor; the process is pinned before it is checked."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise ImportFailed("failed", GONE, f"the process has exited ({error.strerror})") from None
    try:
        if started_at(pid) != start:
            raise ImportFailed("failed", GONE, "the process has exited")
        copy = libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
        if copy >= 0:
            return int(copy)
        code = ctypes.get_errno()
        if code in (errno.ESRCH, errno.EBADF):
            raise ImportFailed("failed", GONE, f"it has been closed ({os.strerror(code)})")
        if code == errno.EPERM:
            # Where kernel.yama.ptrace_scope is 1, as on Ubuntu, that needs root even for one's own.
            raise ImportFailed(
                "denied", "copy-denied", "no permission to copy its control descriptor: that needs root here"
            )
        raise ImportFailed(
            "failed", "copy-failed", f"its control descriptor could not be copied ({os.strerror(code)})"
        )
    finally:
        os.close(pidfd)


def examine(driver: Importer, copy: int) -> dict[str, object]:
    """Import *copy*; an ordinary control descriptor is refused by the driver."""
    handle = c_uint64()
    code = driver.result(
        "cuMemImportFromShareableHandle", byref(handle), c_void_p(copy), c_int(POSIX_DESCRIPTOR)
    )
    if code:
        return {"exported": False}
    try:
        properties = Properties()
        driver.check("cuMemGetAllocationPropertiesFromHandle", byref(properties), handle)
        uuid, total = driver.about(properties.location.id)
        nbytes = measure(driver, handle, properties, total)
        return {"exported": True, "uuid": uuid, "nbytes": nbytes}
    finally:
        driver.result("cuMemRelease", handle)


def measure(driver: Importer, handle: c_uint64, properties: Properties, total: int) -> int | None:
    """The one size, up to *total*, at which *handle* can be mapped; None where the driver takes none."""
    unit = c_size_t()
    driver.check("cuMemGetAllocationGranularity", byref(unit), byref(properties), c_int(MINIMUM_GRANULARITY))
    most = total // unit.value * unit.value
    room, start = c_size_t(most), c_uint64()
    driver.check("cuMemAddressReserve", byref(start), room, c_size_t(0), c_uint64(0), c_uint64(0))
    try:
        sizes = range(unit.value, most + 1, unit.value)
        return next((nbytes for nbytes in sizes if maps(driver, start, nbytes, handle)), None)
    finally:
        driver.result("cuMemAddressFree", start, room)


def maps(driver: Importer, start: c_uint64, nbytes: int, handle: c_uint64) -> bool:
    size = c_size_t(nbytes)
    if driver.result("cuMemMap", start, size, c_size_t(0), handle, c_uint64(0)):
        return False
    driver.check("cuMemUnmap", start, size)
    return True


def judge(driver: Importer, at: int, word: str) -> None:
    pid, start, fd = (int(part) for part in word.split(":"))
    try:
        copy = copy_descriptor(pid, start, fd)
        try:
            say(at=at, **examine(driver, copy))
        finally:
            os.close(copy)
    except ImportFailed as no:
        say(at=at, exported=None, status=no.status, code=no.code, message=str(no))


def main() -> None:
    end_with_parent()
    try:
        driver = Importer()
    except ImportFailed as no:
        say(at=None, status=no.status, code=no.code, message=str(no))
        return
    for at, word in enumerate(sys.argv[1:]):
        judge(driver, at, word)

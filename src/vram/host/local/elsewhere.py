"""Where GPU memory can be held without a descriptor that the scan of open files finds.

The kernel keeps an open file also for a message that was not received yet, for an io_uring that it was
registered with, and for drivers that took its memory over. Only when nothing of that is there, and no process
is ending right now, are bytes that no process accounts for the driver's own.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Collection, Iterator
from functools import cache

from vram.model.files import ElsewhereCode
from vram.payloads.procfs import ProcessFolder, Stat, drain, inside_of

# NVIDIA's own, and others that take dma-bufs or pin device memory: they keep it when descriptors are closed.
_OTHER_DRIVERS = (
    *(b"/dev/infiniband/", b"/dev/gdrdrv", b"/dev/nvidia-fs", b"/dev/nvidia-modeset"),
    *(b"/dev/dri/", b"/dev/kfd", b"/dev/accel/", b"/dev/vfio/", b"/dev/iommu", b"/dev/binder", b"/dev/video"),
)
_RING = b"anon_inode:[io_uring]"
_SOCKET = b"socket:["
_IN_FLIGHT = re.compile(rb"^scm_fds:\s*(\d+)", re.MULTILINE)
_REGISTERED = re.compile(rb"^UserFiles:\s*(\d+)", re.MULTILINE)
_KCMP = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES = 2
_MAX_INFO_NBYTES = 1 << 20


def look_elsewhere(
    root: str, scanned: tuple[bytes, ...], ignore: Collection[int], deadline: float, *, virtual: bool
) -> tuple[ElsewhereCode, ...]:
    """Every place where a process may hold memory so; "cut-off" where not all was read.

    Processes to *ignore* are left out. *scanned* is how the links begin of the files that the scan finds, in
    one table of each process. Other drivers have no part in a *virtual* GPU's memory.
    """
    found: set[ElsewhereCode] = set()
    if not _reports_in_flight(root):
        found.add("cut-off")
    if not virtual and _has_console(root):
        found.add("console")
    others = () if virtual else _OTHER_DRIVERS
    for name in os.listdir(root):
        if not name.isdigit() or int(name) in ignore:
            continue
        try:
            with ProcessFolder(root, int(name)) as folder:
                found.update(_of_process(folder, f"{root}/{name}", scanned, others, deadline))
        except TimeoutError:
            found.add("cut-off")
            break
        except PermissionError:
            found.add("cut-off")
        except OSError:
            continue  # it has ended meanwhile
    return tuple(sorted(found))


def _of_process(
    folder: ProcessFolder, path: str, scanned: tuple[bytes, ...], others: tuple[bytes, ...], deadline: float
) -> Iterator[ElsewhereCode]:
    _require_time(deadline)
    stat = folder.stat()
    if stat is None or stat.kernel_thread or stat.has_ended:
        return
    if stat.exiting and stat.threads < 2:
        yield "exiting"
        return
    for number, thread in enumerate(_file_tables(folder, stat, deadline)):
        yield from _of_table(f"{path}/{inside_of(thread)}", scanned if number else (), others, deadline)


def _require_time(deadline: float) -> None:
    """Asked for each descriptor and thread: any user's process may have a million of them."""
    if time.monotonic() >= deadline:
        raise TimeoutError


def _file_tables(folder: ProcessFolder, stat: Stat, deadline: float) -> Iterator[int | None]:
    """A thread for each table of open files: nearly always the first alone, whose table all others share."""
    if stat.threads < 2:
        yield None
        return
    known: list[int] = []
    for thread in sorted(map(int, folder.names("task"))):
        _require_time(deadline)
        its = folder.stat(thread)
        if its is None or its.exiting or its.state in ("Z", "X"):
            continue
        if not any(_share_files(other, thread) for other in known):
            known.append(thread)
            yield thread


def _share_files(one: int, other: int) -> bool:
    """Whether the kernel says so; where it does not compare them, each table is read."""
    compare = _kernel_compare()
    return compare is not None and compare(one, other) == 0


@cache
def _kernel_compare() -> Callable[[int, int], int] | None:
    number = _KCMP.get(os.uname().machine)
    if number is None:
        return None
    import ctypes

    call = ctypes.CDLL(None).syscall
    return lambda one, other: int(call(number, one, other, _KCMP_FILES, 0, 0))


def _of_table(
    path: str, unread: tuple[bytes, ...], others: tuple[bytes, ...], deadline: float
) -> Iterator[ElsewhereCode]:
    """What the descriptors in one folder of a process show; PermissionError where they are not for us."""
    for fd in os.listdir(f"{path}fd"):
        _require_time(deadline)
        try:
            link = os.fsencode(os.readlink(f"{path}fd/{fd}"))
            if link.startswith(_SOCKET):
                # Other sockets than those of this machine have no such line.
                if _number(_IN_FLIGHT, f"{path}fdinfo/{fd}"):
                    yield "in-flight"
            elif link == _RING:
                # A kernel that does not report how many has perhaps some.
                if _number(_REGISTERED, f"{path}fdinfo/{fd}") != 0:
                    yield "io-uring"
            elif link.startswith(others):
                yield "other-driver"
            elif link.startswith(unread):
                yield "own-files"
        except PermissionError:
            raise
        except OSError:
            continue  # it was closed meanwhile


def _number(pattern: re.Pattern[bytes], path: str) -> int | None:
    with open(path, "rb", buffering=0) as file:
        found = pattern.search(drain(file.fileno(), _MAX_INFO_NBYTES))
    return int(found[1]) if found else None


def _reports_in_flight(root: str) -> bool:
    """Whether this kernel reports how many descriptors are on their way through a socket."""
    with socket.socket(socket.AF_UNIX) as ours:
        try:
            return _number(_IN_FLIGHT, f"{root}/self/fdinfo/{ours.fileno()}") is not None
        except OSError:
            return False


def _has_console(root: str) -> bool:
    """Whether NVIDIA's driver draws the console: that takes memory of no process."""
    try:
        with open(f"{root}/fb", "rb") as file:
            return b"nvidia" in file.read()
    except OSError:
        return False

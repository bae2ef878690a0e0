"""Makes the system calls that vram needs, on itself and on a child of its own, and tells how they went.

Arguments: libraries to load. Every step is announced on descriptor 3, so that one that hangs is
known by its name.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys

PIPE = 3
SYS_PIDFD_GETFD = 438
SYS_KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_FILE = 0
PTRACE_SEIZE = 0x4206
NOT_IMPLEMENTED = 38

LIBC = ctypes.CDLL(None, use_errno=True)


def say(**fields: object) -> None:
    os.write(PIPE, json.dumps(fields).encode() + b"\n")


def main() -> None:
    die_with_parent()
    libraries = sys.argv[1:]
    for name, attempt in (
        ("pidfd_open", try_pidfd_open),
        ("pidfd_getfd", try_pidfd_getfd),
        ("kcmp", try_kcmp),
        ("ptrace", try_ptrace),
    ):
        say(calling=name)
        say(**{name: attempt()})
    say(natives={path: try_loading(path) for path in libraries})
    say(calling=None)


def try_pidfd_open() -> int:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return error.errno or -1
    return 0


def try_pidfd_getfd() -> int:
    """Copy a descriptor of our own; a kernel or a filter that forbids the call forbids it here too."""
    try:
        ourselves = os.pidfd_open(os.getpid())
    except OSError as error:
        return error.errno or -1
    copy, code = call(SYS_PIDFD_GETFD, ourselves, PIPE, 0)
    if copy >= 0:
        os.close(copy)
    os.close(ourselves)
    return code


def try_kcmp() -> int:
    number = SYS_KCMP.get(platform.machine())
    ourselves = os.getpid()
    return NOT_IMPLEMENTED if number is None else call(number, ourselves, ourselves, KCMP_FILE, PIPE, PIPE)[1]


def try_ptrace() -> int:
    """Attach to a child of our own, which Yama allows: what is left are filters and capabilities."""
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        os.read(theirs, 1)  # ends when we close our end
        os._exit(0)
    os.close(theirs)
    ctypes.set_errno(0)
    result = LIBC.ptrace(ctypes.c_long(PTRACE_SEIZE), ctypes.c_int(child), None, None)
    error = ctypes.get_errno() if result else 0
    os.close(ours)
    os.waitpid(child, 0)
    return error


def try_loading(path: str) -> str | None:
    try:
        ctypes.CDLL(path)
    except OSError as error:
        return str(error)
    return None


def call(number: int, *arguments: int) -> tuple[int, int]:
    """What a system call returned, and its error; 0 where there was none."""
    ctypes.set_errno(0)
    result = int(LIBC.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)))
    return result, ctypes.get_errno() if result < 0 else 0


def die_with_parent() -> None:
    set_parent_death_signal, sigkill = 1, 9
    LIBC.prctl(set_parent_death_signal, sigkill)
